# ruff: noqa: E501  (scripts in a table)
"""A script runs with the recorders exactly as without: its processes, threads, signals and ends.

Each row of the table is a training script in one surrounding. It runs without recorders, with the two lines, and with what
`workbench launch` sets up. The rows about the rest are in `test_same_settings_as_without.py`, so that two workers share them.
"""

from pathlib import Path

import pytest
from surroundings import EVERY_SIGNAL, FORK, LAUNCHER, Row, Surroundings, assert_same, parameters

ON_SIGNALS = f"""
got = []
for number in {EVERY_SIGNAL}:
    signal.signal(number, lambda number, frame: got.append(number))
"""
SEND_SIGNALS = f"""
for number in {EVERY_SIGNAL}:
    os.kill(os.getpid(), number)
    time.sleep(0.001)
print(got, flush=True)
"""
DIE = "if n == 3: os.kill(os.getpid(), signal.{}); time.sleep(30)"


def killed_by(name: str) -> Row:
    return Row(f"default {name}", step=DIE.format(name))


TRAINING_THREADS = """
def train():
    part = torch.nn.Linear(8, 8); own = torch.optim.AdamW(part.parameters())
    for _ in range(100):
        own.zero_grad(); part(torch.ones(2, 8)).sum().backward(); own.step()
threads = [threading.Thread(target=train) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""

ROWS = [
    Row("plain"),
    Row("own interpreter", own=True),
    Row("no process group", group=""),
    Row("group not destroyed", destroy=False),
    # Processes.
    Row("fork", step=FORK.format(child="os._exit(0)")),
    Row("fork, sys.exit", group="fake", step=FORK.format(child="sys.exit(0)")),
    Row("fork, an exception", group="fake", step=FORK.format(child="raise ValueError('of the child')")),
    Row("fork, the end of the script", group="fake", step=FORK.format(child="break"), destroy=False),
    Row(
        "fork, the child trains",
        group="fake",
        step=FORK.format(child="loss = model(torch.ones(2, 8)).sum(); loss.backward(); optimizer.step(); sys.exit(0)"),
    ),
    Row(
        "fork twenty times",
        step="for _ in range(20 if n == 2 else 0):\n    pid = os.fork()\n    if pid == 0: os._exit(0)\n    os.waitpid(pid, 0)",
    ),
    Row(
        "fork in a thread",
        step="def work():\n    pid = os.fork()\n    if pid == 0: os._exit(3)\n    print(os.waitpid(pid, 0)[1], flush=True)\nthread = threading.Thread(target=work); thread.start(); thread.join()",
    ),
    Row("daemon of a double fork", step=FORK.format(child="os.setsid(); os._exit(0 if os.fork() else 0)")),
    *(
        Row(
            f"fork, {name} ends the child",
            group="fake",
            step=f"""
if n == 2:
    pid = os.fork()
    if pid == 0:
        time.sleep(20)
        os._exit(1)
    time.sleep(0.1)
    os.kill(pid, signal.{name})
    print("child", os.waitpid(pid, 0)[1], flush=True)
""",
        )
        for name in ("SIGTERM", "SIGINT")
    ),
    Row(
        "subprocess",
        step="import subprocess\nprint(subprocess.run(['echo', 'hello'], capture_output=True), flush=True)",
    ),
    Row(
        "os.system",
        step="print(os.system('exit 3'), os.popen('echo x').read(), os.spawnlp(os.P_WAIT, 'true', 'true'), flush=True)",
    ),
    Row("posix_spawn", step="print(os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)[1], flush=True)"),
    Row("dispositions and masks of a program", step="os.system('grep -E \"Sig(Ign|Blk|Cgt)\" /proc/self/status')"),
    Row(
        "descriptors that a program inherits",
        end="import subprocess\nprint(subprocess.run('ls /proc/self/fd | wc -l', shell=True, close_fds=False, capture_output=True).stdout, flush=True)",
    ),
    Row(
        "wait for any child",
        step="""
try: print(os.waitpid(-1, os.WNOHANG))
except ChildProcessError as error: print(error, flush=True)
""",
    ),
    Row("os.wait", step="pid = os.fork()\nif pid == 0: os._exit(4)\nprint(os.wait() == (pid, 4 << 8), flush=True)"),
    Row(
        "count of SIGCHLD",
        before="ended = []\nsignal.signal(signal.SIGCHLD, lambda *_: ended.append(1))",
        step="os.system('true')",
        end="time.sleep(0.1); print(len(ended), flush=True)",
    ),
    Row("SIGCHLD is ignored", before="signal.signal(signal.SIGCHLD, signal.SIG_IGN)"),
    Row(
        "multiprocessing, fork",
        step="import multiprocessing\np = multiprocessing.get_context('fork').Process(target=lambda: sys.exit(3)); p.start(); p.join(); print(p.exitcode, flush=True)",
    ),
    Row(
        "multiprocessing, terminate",
        step="import multiprocessing\np = multiprocessing.get_context('fork').Process(target=time.sleep, args=[20]); p.start(); p.terminate(); p.join(); print(p.exitcode, flush=True)",
    ),
    Row(
        "pool of processes",
        end="import multiprocessing\nwith multiprocessing.get_context('fork').Pool(2) as pool: print(pool.map(abs, range(4)), flush=True)",
    ),
    *(
        Row(
            f"multiprocessing, {method}",
            end=f"""
import multiprocessing
sys.modules["__main__"].__file__ = None  # the script has no part for its children
context = multiprocessing.get_context({method!r})
for target, arguments in ((print, ["child"]), (sys.exit, [3]), (os._exit, [4]), (divmod, [1, 0])):
    process = context.Process(target=target, args=arguments); process.start(); process.join(); print(process.exitcode, flush=True)
process = context.Process(target=time.sleep, args=[20]); process.start(); process.terminate(); process.join(); print(process.exitcode, flush=True)
""",
        )
        for method in ("spawn", "forkserver")
    ),
    Row(
        "set_start_method",
        end="import multiprocessing\nmultiprocessing.set_start_method('spawn'); print(multiprocessing.get_start_method(), flush=True)",
    ),
    Row(
        "workers of a data loader",
        end="print([int(x) for x in torch.utils.data.DataLoader(range(8), num_workers=2)], flush=True)",
    ),
    Row(
        "register_at_fork",
        early="os.register_at_fork(before=lambda: print('before', flush=True), after_in_parent=lambda: (time.sleep(0.3), print('parent', flush=True)), after_in_child=lambda: print('child', flush=True))",
        end="pid = os.fork()\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0)",
    ),
    # Ends.
    Row("os._exit", step="if n == 3: print('not flushed', end=''); os._exit(7)"),
    Row(
        "joins all threads",
        end="[one.join() for one in threading.enumerate() if one is not threading.current_thread()]; print(threading.active_count(), flush=True)",
    ),
    Row("sys.exit(3)", step="if n == 3: sys.exit(3)"),
    Row("sys.exit(0)", step="if n == 3: sys.exit(0)"),
    Row("sys.exit is caught", step="try: sys.exit(3)\nexcept SystemExit as end: print(end.code, end.args, flush=True)"),
    Row("KeyboardInterrupt", step="if n == 3: raise KeyboardInterrupt"),
    Row("SIGINT", step=DIE.format("SIGINT")),
    Row("an exception", step="if n == 3: raise ValueError('of the user')"),
    Row("an exception, no group", group="", step="if n == 3: raise ValueError('of the user')"),
    Row(
        "a chained exception with notes",
        step="if n == 3:\n    try: 1 / 0\n    except ZeroDivisionError as e: e.add_note('note'); raise ExceptionGroup('g', [e]) from e",
    ),
    Row(
        "an exception without text",
        step="class Bad(Exception):\n    def __str__(self): raise RuntimeError('no text')\nif n == 3: raise Bad",
    ),
    Row("RecursionError", step="def f(): f()\nif n == 3: f()"),
    Row("MemoryError", step="if n == 3: bytearray(1 << 60)"),
    Row(
        "sys.exit as a function",
        step="import copy, pickle\nprint(sys.exit.__name__, sys.exit.__module__, pickle.loads(pickle.dumps(sys.exit)) is copy.deepcopy([sys.exit])[0] is sys.exit)\nfor a, k in (((1, 2), {}), ((), {'status': 3})):\n    try: sys.exit(*a, **k)\n    except TypeError as error: print(error, flush=True)",
    ),
    Row(
        "a warning of the backward pass",
        step="import warnings\nwarnings.simplefilter('default'); torch.autograd.backward(model(torch.ones(2, 8)), grad_variables=torch.ones(2, 8))",
    ),
    Row(
        "profiler of the script",
        step="if n == 2:\n    with torch.profiler.profile() as p: model(torch.ones(2, 8)).sum().backward()\n    print(sorted({e.key for e in p.key_averages()}), flush=True)",
    ),
    Row(
        "warnings of the backward pass and of a data set, with the lines of callers",
        before="""
import warnings
class Warns(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 2
    @staticmethod
    def backward(ctx, g):
        for level in range(1, 6): warnings.warn(f"backward {level}", stacklevel=level)
        return g * 2
class Data(torch.utils.data.Dataset):
    def __len__(self): return 1
    def __getitem__(self, i):
        for level in range(1, 6): warnings.warn(f"data {level}", stacklevel=level)
        return torch.ones(8)
""",
        step="for x in torch.utils.data.DataLoader(Data()): Warns.apply(model(x)).sum().backward()",
    ),
    Row(
        "what torch.compile sees of a step",
        group="",
        step="""
from torch._dynamo.utils import counters
torch._logging.set_logs(all=40)  # its lines have the time
def train():
    optimizer.zero_grad()
    loss = model(torch.ones(2, 8)).square().sum()
    loss.backward()
    optimizer.step()
    return loss
if n == 1: compiled = torch.compile(train, backend="eager")
if n >= 1: compiled()
if n == 4:
    print({key: {**values} for key, values in counters.items() if key not in ("frames", "inductor")}, flush=True)
    explained = torch._dynamo.explain(train)()
    print(explained.graph_count, [reason.reason for reason in explained.break_reasons], flush=True)
""",
    ),
    Row("an exception in the backward pass", step="if n == 3: next(model.parameters()).register_hook(lambda g: 1 / 0)"),
    Row(
        "an exception in a data set",
        step="class D(torch.utils.data.Dataset):\n    def __len__(self): return 2\n    def __getitem__(self, i): raise IndexError('bad sample')\nif n == 3: next(iter(torch.utils.data.DataLoader(D())))",
    ),
    Row(
        "an exception in an optimizer",
        step="if n == 3:\n    def bad(*_): raise ValueError('hook')\n    optimizer.register_step_pre_hook(bad)",
    ),
    Row("abort", step="if n == 3: os.abort()"),
    Row("SIGKILL", step="if n == 3: os.kill(os.getpid(), 9)"),
    Row("SIGSEGV", step="if n == 3: os.kill(os.getpid(), signal.SIGSEGV); time.sleep(5)"),
    Row(
        "order of atexit",
        early="import atexit; atexit.register(print, 'first', flush=True)",
        end="atexit.register(print, 'second', flush=True)",
    ),
    Row(
        "sys.exit in atexit, and the stack there",
        end="""
import atexit, traceback
class Quit:
    def __call__(self): sys.exit(3)
    def __repr__(self): return "quit"
atexit.register(Quit()); atexit.register(traceback.print_stack)
""",
    ),
    Row("an exception in atexit", end="import atexit\natexit.register(divmod, 1, 0)"),
    Row("os._exit in atexit", early="import atexit; atexit.register(lambda: os._exit(9))"),
    Row("finalizers", after="class F:\n    def __del__(self): print('del', flush=True)\nf = F()"),
    Row(
        "a thread outlives the main thread",
        end="threading.Thread(target=lambda: (time.sleep(0.5), print('thread', flush=True))).start()",
    ),
    Row("a daemon thread", end="threading.Thread(target=time.sleep, args=[60], daemon=True).start()"),
    # Threads.
    Row(
        "an exception in a thread", step="t = threading.Thread(target=lambda: 1 / 0, name='mine'); t.start(); t.join()"
    ),
    Row("SystemExit in a thread", step="t = threading.Thread(target=sys.exit, args=[3]); t.start(); t.join()"),
    Row(
        "backward in threads",
        step="ts = [threading.Thread(target=lambda: model(torch.ones(2, 8)).sum().backward()) for _ in range(4)]\nfor t in ts: t.start()\nfor t in ts: t.join()",
    ),
    Row(
        "training in a thread",
        end="def train():\n    for _ in range(5):\n        optimizer.zero_grad(); model(torch.ones(2, 8)).sum().backward(); optimizer.step()\nt = threading.Thread(target=train); t.start(); t.join()",
    ),
    Row(
        "recorders start in a thread",
        own=False,
        group="def init(): dist.init_process_group('gloo', rank=0, world_size=1, store=dist.HashStore())\nt = threading.Thread(target=init); t.start(); t.join()",
    ),
    # Signals.
    Row("handlers of all signals before", early=ON_SIGNALS, end=SEND_SIGNALS),
    Row("handlers of all signals after", after=ON_SIGNALS, end=SEND_SIGNALS),
    Row("handlers of all signals, no group", group="", after=ON_SIGNALS, end=SEND_SIGNALS),
    Row("handlers of all signals in the steps", step=ON_SIGNALS, end=SEND_SIGNALS),
    Row(
        "getsignal of all signals",
        end=f"print([(s, signal.getsignal(s)) for s in {EVERY_SIGNAL} if signal.getsignal(s) not in (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler)], flush=True)",
    ),
    *(killed_by(name) for name in ("SIGTERM", "SIGUSR2", "SIGQUIT", "SIGRTMAX")),
    Row(
        "SIGTERM with a handler before",
        early="signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))",
        step=DIE.format("SIGTERM"),
    ),
    Row(
        "SIGTERM with a handler after",
        after="signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))",
        step=DIE.format("SIGTERM"),
    ),
    Row(
        "SIGTERM is ignored",
        early="signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        step="os.kill(os.getpid(), signal.SIGTERM)",
    ),
    Row(
        "SIGUSR2 chains",
        after="old = signal.signal(signal.SIGUSR2, lambda *_: print('usr2', flush=True)); print(old, flush=True)",
        step="os.kill(os.getpid(), signal.SIGUSR2)",
        end="signal.signal(signal.SIGUSR2, old); os.kill(os.getpid(), signal.SIGUSR2); time.sleep(5)",
    ),
    Row(
        "SIGTERM chains",
        after="old = signal.signal(signal.SIGTERM, lambda *_: print('term', flush=True)); print(old, flush=True)",
        step="os.kill(os.getpid(), signal.SIGTERM)",
    ),
    Row(
        "pause",
        after="signal.signal(signal.SIGALRM, lambda *_: print('alarm', flush=True))",
        step="signal.setitimer(signal.ITIMER_REAL, 0.05); signal.pause()",
    ),
    Row(
        "sigwait",
        early="signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM])",
        step="os.kill(os.getpid(), signal.SIGUSR1); print(signal.sigwait([signal.SIGUSR1]), flush=True)\nos.kill(os.getpid(), signal.SIGTERM); print(signal.sigtimedwait([signal.SIGTERM], 5), flush=True)"[
            : -len(", flush=True)")
        ]
        + ".si_signo, flush=True)",
    ),
    *(
        Row(
            f"a handler raises {error} while our code runs",
            end=f"""
import random
raised = []
def late(_, frame):
    # Raised in torch's C++, it may become an error of torch.
    if "recorders" not in frame.f_code.co_filename:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.0004))
        return
    raised.append(1)
    raise {error}
signal.signal(signal.SIGALRM, late)
caught, until = 0, time.monotonic() + 3
while time.monotonic() < until:
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0002, 0.002))
        for _ in range(100):
            optimizer.zero_grad(); model(torch.ones(2, 8)).sum().backward(); optimizer.step()
    except {error}: caught += 1
signal.setitimer(signal.ITIMER_REAL, 0)
print("lost", len(raised) - caught, flush=True)
""",
        )
        for error in ("ValueError", "TimeoutError")
    ),
    Row(
        "a handler raises an exception after a signal in a garbage collection",
        end="""
import gc
class Late(Exception): pass
def late(*_): raise Late
signal.signal(signal.SIGALRM, late)
caught, many = 0, [[] for _ in range(400_000)]
for _ in range(10):
    try: signal.setitimer(signal.ITIMER_REAL, 0.001); gc.collect(); time.sleep(5)
    except Late: caught += 1
print("caught", caught, flush=True)
""",
    ),
    Row(
        "another thread raises an exception in the main thread",
        end="""
import ctypes, random
class Late(Exception): pass
sent, caught, ended, main = [], 0, [], threading.get_ident()
def send():
    while len(sent) < 300:
        time.sleep(random.uniform(0.002, 0.006))
        if armed: sent.append(armed.pop()); ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(Late))
armed = []
sender = threading.Thread(target=send); sender.start()
while sender.is_alive():
    try:
        armed.append(1)
        while sender.is_alive(): optimizer.zero_grad(); model(torch.ones(2, 8)).sum().backward(); optimizer.step()
    except Late: caught += 1
    except IndexError: pass
sender.join()
print("lost", max(0, len(sent) - caught - 1), flush=True)
""",
    ),
    Row(
        "SIGTERM is blocked in the main thread, and another thread gets it",
        own=True,
        step="if n == 2: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)",
    ),
    *(
        Row(
            f"{name} is blocked in a step, no group",
            group="",
            step=f"if n == 2:\n    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.{name}])\n    os.kill(os.getpid(), signal.{name}); time.sleep(0.05)\n    print(signal.sigwait([signal.{name}]), flush=True)\n    signal.pthread_sigmask(signal.SIG_SETMASK, before)",
        )
        for name in ("SIGTERM",)
    ),
    Row(
        "sigwait, blocked before",
        early="signal.pthread_sigmask(signal.SIG_BLOCK, range(34, 65))",
        end="for s in range(34, 65): os.kill(os.getpid(), s)\nprint([signal.sigwait(range(34, 65)) for _ in range(34, 65)], flush=True)",
    ),
    Row(
        "timers",
        early="ticks = []\nfor s in (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF): signal.signal(s, lambda s, _: ticks.append(s))\nsignal.setitimer(signal.ITIMER_REAL, 0.3); signal.setitimer(signal.ITIMER_VIRTUAL, 0.05); signal.setitimer(signal.ITIMER_PROF, 0.05)",
        end="time.sleep(0.4)\nfor i in range(3000000): pass\nprint(sorted(ticks), flush=True)",
    ),
    Row(
        "wakeup descriptor before",
        early="r, w = os.pipe(); os.set_blocking(w, False); signal.set_wakeup_fd(w); signal.signal(signal.SIGUSR1, lambda *_: None)",
        end="os.kill(os.getpid(), signal.SIGUSR1); time.sleep(0.01); print(os.read(r, 9), signal.set_wakeup_fd(-1) == w, flush=True)",
    ),
    Row(
        "wakeup descriptor after",
        after="r, w = os.pipe(); os.set_blocking(w, False); print(signal.set_wakeup_fd(w)); signal.signal(signal.SIGUSR1, lambda *_: None)",
        end="os.kill(os.getpid(), signal.SIGUSR1); time.sleep(0.01); print(os.read(r, 9), signal.set_wakeup_fd(-1) == w, flush=True)",
    ),
    Row(
        "asyncio with handlers, then SIGTERM",
        end="""
import asyncio
async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, print, "usr1")
    os.kill(os.getpid(), signal.SIGUSR1); await asyncio.sleep(0.05)
asyncio.run(main())
os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)
""",
    ),
    Row(
        "SIGPIPE has its default effect",
        early="signal.signal(signal.SIGPIPE, signal.SIG_DFL)",
        end="r, w = os.pipe(); os.close(r); os.write(w, b'x')",
    ),
    Row(
        "asyncio",
        end="import asyncio\nasync def main():\n    p = await asyncio.create_subprocess_exec('true'); print(await p.wait(), flush=True)\nasyncio.run(main())",
    ),
    Row(
        "SIGSTOP and SIGCONT",
        step="if n == 2: os.system(f'(sleep 0.2; kill -CONT {os.getpid()}) &'); os.kill(os.getpid(), signal.SIGSTOP)",
    ),
    Row(
        "SIGPIPE",
        end="r, w = os.pipe(); os.close(r)\ntry: os.write(w, b'x')\nexcept BrokenPipeError as e: print(e, flush=True)",
    ),
]


QUICK = {
    "plain",
    "own interpreter",
    "no process group",
    "fork",
    "fork, the child trains",
    "fork, SIGTERM ends the child",
    "subprocess",
    "workers of a data loader",
    "register_at_fork",
    "os._exit",
    "KeyboardInterrupt",
    "an exception",
    "warnings of the backward pass and of a data set, with the lines of callers",
    "what torch.compile sees of a step",
    "abort",
    "sys.exit in atexit, and the stack there",
    "SIGKILL",
    "an exception in a thread",
    "recorders start in a thread",
    "handlers of all signals before",
    "handlers of all signals after",
    "default SIGTERM",
    "SIGTERM chains",
    "sigwait",
}
"""The names of the rows that run with the quick tests, one or more of each group; each of the others resembles one of them, or takes seconds."""


@pytest.mark.parametrize("row", parameters(ROWS, QUICK))
def test_a_script_runs_with_the_recorders_as_without(row: Row, surroundings: Surroundings, tmp_path: Path) -> None:
    assert_same(row, surroundings, tmp_path)


def test_models_that_train_in_several_threads_at_once_do_not_confuse_the_recorders(
    surroundings: Surroundings, tmp_path: Path
) -> None:
    row = Row("training in threads", before="sys.setswitchinterval(1e-5)", end=TRAINING_THREADS)

    ended = surroundings.run(row, LAUNCHER, tmp_path)

    assert (ended.status, ended.stderr) == (0, b"")
