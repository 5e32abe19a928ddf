# ruff: noqa: E501  (scripts in a table)
"""A script runs with the recorders exactly as without: exit status, output, signals, files and time.

Each row of the table is a training script in one surrounding. It runs without recorders, with the two lines, and with what
`workbench launch` sets up.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from surroundings import LAUNCHER, TWO_LINES, WITHOUT, Row, Surroundings, without_our_line

MOST_CPU_S = 8.0
"""The CPU seconds that the recorders may take more: they import parts of torch, on a machine that others use, too."""

FORK = """
if n == 2:
    pid = os.fork()
    if pid == 0:
        {child}
    print("child", os.waitpid(pid, 0)[1], flush=True)
"""
DISPOSITIONS = """
masks = {{}}
for line in open("/proc/{pid}/status"):
    if line.startswith("Sig"):
        masks[line.split(":")[0]] = int(line.split()[1], 16)
"""
EVERY_SIGNAL = "[s for s in range(1, signal.NSIG) if s not in (9, 19, 32, 33)]"
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


ROWS = [
    Row("plain"),
    Row("own interpreter", own=True),
    Row("no process group", group=""),
    Row("no process group, own interpreter", group="", own=True),
    Row("group not destroyed", destroy=False),
    # Processes.
    Row("fork", step=FORK.format(child="os._exit(0)")),
    Row("fork, sys.exit", group="fake", step=FORK.format(child="sys.exit(0)")),
    Row("fork, sys.exit, no group", group="", step=FORK.format(child="sys.exit(0)")),
    Row("fork, sys.exit with a status", group="fake", step=FORK.format(child="sys.exit(5)")),
    Row("fork, an exception", group="fake", step=FORK.format(child="raise ValueError('of the child')")),
    Row("fork, the end of the script", group="fake", step=FORK.format(child="break"), destroy=False),
    Row(
        "fork, the child trains",
        group="fake",
        step=FORK.format(child="loss = model(torch.ones(2, 8)).sum(); loss.backward(); optimizer.step(); sys.exit(0)"),
    ),
    Row(
        "fork twenty times",
        step="for _ in range(20):\n    pid = os.fork()\n    if pid == 0: os._exit(0)\n    os.waitpid(pid, 0)",
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
        for name in ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGINT", "SIGALRM", "SIGRTMIN", "SIGRTMAX")
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
        "multiprocessing, an exception",
        step="import multiprocessing\ndef fails(): raise KeyError('x')\np = multiprocessing.get_context('fork').Process(target=fails); p.start(); p.join(); print(p.exitcode, flush=True)",
    ),
    Row(
        "multiprocessing, terminate",
        step="import multiprocessing\np = multiprocessing.get_context('fork').Process(target=time.sleep, args=[20]); p.start(); p.terminate(); p.join(); print(p.exitcode, flush=True)",
    ),
    Row(
        "pool of processes",
        end="import multiprocessing\nwith multiprocessing.get_context('fork').Pool(2) as pool: print(pool.map(abs, range(4)), flush=True)",
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
    Row("sys.exit(3), no group", group="", step="if n == 3: sys.exit(3)"),
    Row("sys.exit with a text", step="if n == 3: sys.exit('a text')"),
    Row("sys.exit(0)", step="if n == 3: sys.exit(0)"),
    Row("sys.exit is caught", step="try: sys.exit(3)\nexcept SystemExit as end: print(end.code, end.args, flush=True)"),
    Row("raise SystemExit", step="if n == 3: raise SystemExit(4)"),
    Row("exit()", step="if n == 3: exit(5)"),
    Row("KeyboardInterrupt", step="if n == 3: raise KeyboardInterrupt"),
    Row("SIGINT", step=DIE.format("SIGINT")),
    Row("an exception", step="if n == 3: raise ValueError('of the user')"),
    Row("an exception, own interpreter", own=True, step="if n == 3: raise ValueError('of the user')"),
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
    Row("handlers of all signals before, own interpreter", own=True, early=ON_SIGNALS, end=SEND_SIGNALS),
    Row("handlers of all signals after", after=ON_SIGNALS, end=SEND_SIGNALS),
    Row("handlers of all signals, no group", group="", after=ON_SIGNALS, end=SEND_SIGNALS),
    Row("handlers of all signals in the steps", step=ON_SIGNALS, end=SEND_SIGNALS),
    Row(
        "getsignal of all signals",
        end=f"print([(s, signal.getsignal(s)) for s in {EVERY_SIGNAL} if signal.getsignal(s) not in (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler)], flush=True)",
    ),
    *(
        killed_by(name)
        for name in (
            "SIGTERM",
            "SIGUSR1",
            "SIGUSR2",
            "SIGHUP",
            "SIGALRM",
            "SIGQUIT",
            "SIGXCPU",
            "SIGVTALRM",
            "SIGPROF",
            "SIGIO",
            "SIGRTMIN",
            "SIGRTMIN+1",
            "SIGRTMAX",
        )
    ),
    Row("SIGTERM, no group", group="", step=DIE.format("SIGTERM")),
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
            f"{name} is blocked in a step, no group",
            group="",
            step=f"if n == 2:\n    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.{name}])\n    os.kill(os.getpid(), signal.{name}); time.sleep(0.05)\n    print(signal.sigwait([signal.{name}]), flush=True)\n    signal.pthread_sigmask(signal.SIG_SETMASK, before)",
        )
        for name in ("SIGTERM", "SIGUSR2", "SIGALRM")
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
    # Hooks.
    Row(
        "excepthook before",
        early="sys.excepthook = lambda *a: print('hook', a[0].__name__, flush=True)",
        step="if n == 3: raise ValueError",
    ),
    Row(
        "excepthook before, own interpreter",
        own=True,
        early="sys.excepthook = lambda *a: print('hook', a[0].__name__, flush=True)",
        step="if n == 3: raise ValueError",
    ),
    Row(
        "excepthook after",
        after="sys.excepthook = lambda *a: print('hook', a[0].__name__, flush=True)",
        step="if n == 3: raise ValueError",
    ),
    Row("excepthook that fails", early="sys.excepthook = lambda *a: 1 / 0", step="if n == 3: raise ValueError"),
    Row("excepthook is deleted", after="del sys.excepthook", step="if n == 3: raise ValueError"),
    Row(
        "threading.excepthook before",
        early="threading.excepthook = lambda a: print('hook', a.exc_type, flush=True)",
        step="t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()",
    ),
    Row(
        "threading.excepthook after",
        after="threading.excepthook = lambda a: print('hook', a.exc_type, flush=True)",
        step="t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()",
    ),
    Row(
        "unraisablehook",
        early="sys.unraisablehook = lambda a: print('hook', a.exc_type, flush=True)\nclass F:\n    def __del__(self): 1 / 0",
        step="F()",
    ),
    Row(
        "audit hook",
        early="seen = []\nsys.addaudithook(lambda name, _: seen.append(name))",
        end="print(len(seen) > 0, flush=True)",
    ),
    Row(
        "setprofile",
        after="calls = []\nme = __file__\nsys.setprofile(lambda f, e, a: calls.append(e) if f.f_code.co_filename == me else None)",
        end="sys.setprofile(None); print(len(calls), flush=True)",
    ),
    Row(
        "settrace",
        after="calls = []\nme = __file__\ndef tracer(f, e, a):\n    if f.f_code.co_filename == me: calls.append(e)\n    return tracer\nsys.settrace(tracer)",
        step="def g(): return 1\ng()",
        end="sys.settrace(None); print(len(calls), flush=True)",
    ),
    Row(
        "tracemalloc",
        early="import tracemalloc; tracemalloc.start()",
        end="print(tracemalloc.is_tracing(), flush=True)",
    ),
    Row(
        "stdout and stderr are replaced",
        early="import io\nsys.stdout, sys.stderr = io.StringIO(), io.StringIO()",
        step="print('x')",
        end="sys.__stdout__.write(sys.stdout.getvalue()); sys.__stdout__.write(sys.stderr.getvalue())",
    ),
    Row("stdout and stderr are None", early="sys.stdout = sys.stderr = None", step="if n == 3: sys.exit(6)"),
    # faulthandler.
    Row(
        "faulthandler before",
        early="import faulthandler; faulthandler.enable()",
        end="print(faulthandler.is_enabled(), flush=True)",
    ),
    Row(
        "faulthandler before, SIGSEGV",
        early="import faulthandler; log = open('crash.txt', 'w'); faulthandler.enable(log, all_threads=False)",
        step="if n == 3:\n    pid = os.fork()\n    if pid == 0: os.kill(os.getpid(), signal.SIGSEGV)\n    os.waitpid(pid, 0); print('train.py' in open('crash.txt').read(), flush=True); os.remove('crash.txt')",
    ),
    Row(
        "faulthandler after, SIGSEGV",
        after="import faulthandler; log = open('crash.txt', 'w'); faulthandler.enable(log, all_threads=False)",
        step="if n == 3:\n    pid = os.fork()\n    if pid == 0: os.kill(os.getpid(), signal.SIGSEGV)\n    os.waitpid(pid, 0); print('train.py' in open('crash.txt').read(), flush=True); os.remove('crash.txt')",
    ),
    Row(
        "faulthandler after, still on at the end",
        early="import atexit\natexit.register(lambda: print(faulthandler.is_enabled(), flush=True))",
        after="import faulthandler; faulthandler.enable()",
    ),
    Row(
        "dump_traceback_later",
        end="import faulthandler; log = open('late.txt', 'w')\nfaulthandler.dump_traceback_later(0.1, file=log); time.sleep(0.3); faulthandler.cancel_dump_traceback_later(); log.close(); print('train.py' in open('late.txt').read(), flush=True); os.remove('late.txt')",
    ),
    Row(
        "dump_traceback_later, exit",
        after="import faulthandler; log = open('/dev/null', 'w'); faulthandler.dump_traceback_later(0.4, exit=True, file=log)",
        end="time.sleep(5)",
    ),
    *(
        Row(
            f"faulthandler.register, {when}",
            **{
                when: "import faulthandler\nlogs = [open(f'log{s}.txt', 'w') for s in range(4)]\nfor s, log in zip((signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP), logs): faulthandler.register(s, log, all_threads=False)"
            },
            end="for s in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP): os.kill(os.getpid(), s); time.sleep(0.05)\nprint(['train.py' in open(f'log{s}.txt').read() for s in range(4)], flush=True)\nfor s in range(4): os.remove(f'log{s}.txt')",
        )
        for when in ("early", "after")
    ),
    # The interpreter.
    *(
        Row(f"python {' '.join(options)}", python=options, step=step)
        for options, step in (
            (("-O",), "assert False"),
            (("-W", "error"), "pass"),
            (("-X", "dev"), "pass"),
            (("-I",), "pass"),
            (("-P", "-u", "-B"), "if n == 3: raise ValueError(__doc__)"),
        )
    ),
    Row(
        "sitecustomize of the user", own=True, environment={"PYTHONPATH_": "x"}, end="print(os.environ['PYTHONPATH_'])"
    ),
    Row(
        "locale C, no UTF-8 mode",
        own=True,
        environment={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        end="print(sys.stdout.encoding, ascii(os.listdir('.')), flush=True)",
    ),
    Row(
        "recursion limit",
        end="sys.setrecursionlimit(200)\ndef depth(k):\n    try: return depth(k + 1)\n    except RecursionError: return k\nprint(depth(0), flush=True)",
    ),
    Row("gc.disable", early="import gc; gc.disable()", end="print(gc.isenabled(), flush=True)"),
    Row("gc.freeze", early="import gc; gc.freeze()", step="gc.collect()"),
    Row("gc debug", early="import gc; gc.set_debug(gc.DEBUG_UNCOLLECTABLE)", step="gc.collect()"),
    Row(
        "filters of warnings",
        early="import warnings; warnings.simplefilter('error'); before = list(warnings.filters)",
        end="print(warnings.filters == before, flush=True)",
    ),
    Row(
        "warnings are recorded",
        early="import warnings; caught = warnings.catch_warnings(record=True); seen = caught.__enter__(); warnings.simplefilter('always')",
        end="print([str(w.message) for w in seen if 'workbench' in str(w.filename) or 'recorder' in str(w.message)], flush=True)",
    ),
    Row(
        "logging at level DEBUG",
        early="import logging; logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)",
        end="print(logging.getLogger().handlers, logging.getLogger('torch').level, flush=True)",
    ),
    Row(
        "logging as by default",
        end="import logging\nprint(logging.getLogger().handlers, logging.getLogger('torch').level, logging.getLogger('torch').handlers, logging.root.level, flush=True)",
    ),
    Row("torch logs at INFO", own=True, environment={"TORCH_CPP_LOG_LEVEL": "ERROR"}),
    Row("patched time", step="time.time = lambda: 0.0"),
    Row(
        "patched time_ns, monotonic and sleep",
        step="time.time_ns = time.monotonic_ns = time.perf_counter_ns = lambda: 0; time.monotonic = time.perf_counter = lambda: 0.0; time.sleep = lambda s: None",
    ),
    Row(
        "random numbers",
        early="import random; random.seed(1)",
        end="import hashlib\nprint(random.random(), torch.rand(1).item(), flush=True)",
    ),
    Row(
        "settings of torch",
        end="print(torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_deterministic_algorithms_enabled(), torch.is_anomaly_enabled(), flush=True)",
    ),
    Row("chdir", step="if n == 2: os.chdir('/')"),
    Row(
        "umask",
        early="os.umask(0o777)",
        end="open('new', 'w').close(); print(oct(os.stat('new').st_mode), oct(os.umask(0)), flush=True); os.chmod('new', 0o600)",
    ),
    Row("HOME is unset", environment={"HOME": None}),
    Row("TMPDIR is missing", environment={"TMPDIR": "/nonexistent/tmp"}),
    Row("TMPDIR is long", environment={"TMPDIR": "/tmp/" + "x" * 200}),
    Row("RANK is no number", environment={"RANK": "node-0"}),
    Row("RANK is no number, no group", group="", environment={"RANK": "node-0", "WORLD_SIZE": ""}),
    Row(
        "names of threads",
        after="import threading",
        end="print(threading.current_thread().name, threading.main_thread() is threading.current_thread(), flush=True)",
    ),
    # Descriptors and limits.
    Row("descriptors are closed", group="fake", step="if n == 2: os.closerange(3, 256)"),
    Row(
        "descriptors are closed and used again",
        group="fake",
        step="""
if n == 2:
    os.closerange(3, 256)
    files = [open(f"mine{k}.txt", "w") for k in range(12)]
""",
        end="for f in files: f.write('mine'); f.close()",
    ),
    Row("stdin, stdout and stderr are closed", early="for k in (0, 1, 2): os.close(k)", step="if n == 3: os._exit(4)"),
    Row(
        "stdin, stdout and stderr are closed before",
        early="",
        own=True,
        python=("-c", "import os, sys; os.closerange(0, 3); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"),
    ),
    Row(
        "limit of open files",
        early="import resource\nmost = len(os.listdir('/proc/self/fd')) + 2; resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))",
        group="",
    ),
    Row(
        "limit of open files, group",
        group="dist.init_process_group('gloo', rank=0, world_size=1, store=dist.HashStore())\nimport resource\nmost = len(os.listdir('/proc/self/fd')) + 1; resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))",
        destroy=False,
    ),
    Row("limit of processes", early="import resource; resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))", group=""),
    Row("limit of the stack", early="import resource; resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 20))"),
    Row(
        "limit of the address space",
        after="import resource\nused = int(open('/proc/self/statm').read().split()[0]) * 4096 + (64 << 20); resource.setrlimit(resource.RLIMIT_AS, (used, used))",
    ),
    Row(
        "limit of core files",
        early="import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
        step="if n == 3: os.abort()",
    ),
    # The recorders' folder.
    Row("folder is removed", step="import shutil\nif n == 2: shutil.rmtree(FOLDER, ignore_errors=True)"),
    Row("folder cannot be made", folder="/proc/nonexistent/outputs"),
    Row("folder cannot be made, no group", group="", folder="/proc/nonexistent/outputs"),
    Row(
        "folder cannot be made, an exception",
        folder="/proc/nonexistent/outputs",
        step="if n == 3: raise ValueError('of the user')",
    ),
    Row(
        "folder cannot be made, no group, an exception",
        group="",
        folder="/proc/nonexistent/outputs",
        step="if n == 3: raise ValueError('of the user')",
    ),
    Row("folder is a file", early="open(FOLDER, 'w').close()"),
    Row("folder of steps is a file", early="os.makedirs(FOLDER, exist_ok=True); open(FOLDER + '/steps', 'w').close()"),
    Row("folder of dumps is a file", early="os.makedirs(FOLDER, exist_ok=True); open(FOLDER + '/dumps', 'w').close()"),
    *(
        Row(
            f"a {kind} in place of our files",
            early=f"""
for name in ("steps/heartbeat_0.bin", "steps/rank_0.jsonl", "dumps/.stacks_0.txt", "dumps/.p2p_0.bin", "dumps/crash_0.txt", "dumps/groups_0.json", "dumps/.collector.log", "dumps/new_groups_0.jsonl", "dumps/.ask_0.json", "dumps/thread_0.json", "dumps/exit_0.json", "steps/.only_process"):
    path = os.path.join(FOLDER, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not os.path.lexists(path): {make}
""",
            end="if os.path.exists('victim'): print(open('victim').read(), flush=True)",
        )
        for kind, make in (
            ("pipe", "os.mkfifo(path)"),
            ("folder", "os.mkdir(path)"),
            (
                "link to a file",
                "open('victim', 'w').write('precious') if not os.path.exists('victim') else None; os.symlink(os.path.abspath('victim'), path)",
            ),
        )
    ),
    Row("folder has no UTF-8 name", folder=b"../\xff\xfe".decode("utf-8", "surrogateescape")),
    Row("folder has a long name", folder="../" + "x" * 200),
    Row("folder is in the working folder of the script", folder="outputs"),
    # Torch.
    Row(
        "inference mode around the start",
        before="mode = torch.inference_mode(); mode.__enter__()",
        after="mode.__exit__(None, None, None)",
    ),
    Row("torch.compile", step="if n == 0: model = torch.compile(model, backend='eager', fullgraph=True)"),
    Row(
        "anomaly mode",
        before="torch.autograd.set_detect_anomaly(True, check_nan=True)",
        step="if n == 3: (torch.zeros(1, requires_grad=True) / 0).sqrt().sum().backward()",
    ),
    Row("deterministic algorithms", before="torch.use_deterministic_algorithms(True)"),
    Row("default dtype and device", before="torch.set_default_dtype(torch.float64); torch.set_default_device('cpu')"),
    Row(
        "function mode",
        before="from torch.overrides import TorchFunctionMode\nseen = []\nclass M(TorchFunctionMode):\n    def __torch_function__(self, f, t, a=(), k=None): seen.append(getattr(f, '__name__', '')); return f(*a, **(k or {}))\nmode = M(); mode.__enter__()",
        end="mode.__exit__(None, None, None); print(len(seen), flush=True)",
    ),
    Row(
        "dispatch mode",
        before="from torch.utils._python_dispatch import TorchDispatchMode\nseen = []\nclass M(TorchDispatchMode):\n    def __torch_dispatch__(self, f, t, a=(), k=None): seen.append(str(f)); return f(*a, **(k or {}))\nmode = M(); mode.__enter__()",
        end="mode.__exit__(None, None, None); print(len(seen), flush=True)",
    ),
    Row(
        "profiler of the user",
        before="prof = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]); prof.__enter__()",
        end="prof.__exit__(None, None, None); print(sum(e.count for e in prof.key_averages() if e.key == 'aten::addmm'), flush=True)",
    ),
    Row(
        "state of the optimizer is pickled",
        end="import pickle, copy\nprint(sorted(optimizer.__dict__), len(pickle.dumps(optimizer)), len(pickle.dumps(model)), copy.deepcopy(optimizer).state_dict().keys(), flush=True)",
    ),
    Row(
        "optimizer is freed at once",
        end="import weakref\nweakref.finalize(optimizer, print, 'freed', flush=True); del optimizer; print('after', flush=True)",
    ),
    Row(
        "model and graph are freed at once",
        end="import weakref\nweakref.finalize(model, print, 'freed', flush=True); del model, loss, optimizer; print('after', flush=True)",
    ),
    Row(
        "LBFGS",
        end="o = torch.optim.LBFGS(model.parameters(), max_iter=3)\ndef closure():\n    o.zero_grad(); l = model(torch.ones(2, 8)).square().sum(); l.backward(); return l\nfor _ in range(3): print(o.step(closure).item(), flush=True)",
    ),
    Row(
        "optimizers in backward hooks",
        end="for p in model.parameters():\n    o = torch.optim.SGD([p], lr=0.1)\n    p.register_post_accumulate_grad_hook(lambda p, o=o: [o.step(), o.zero_grad()][0])\nfor _ in range(4): model(torch.ones(2, 8)).sum().backward()\nprint(model.weight.sum().item(), flush=True)",
    ),
    Row(
        "backward is patched by the user",
        after="real = torch.autograd.backward\ndef mine(*a, **k): print('backward', flush=True); return real(*a, **k)\ntorch.autograd.backward = mine",
    ),
    Row("no gradient", step="(model(torch.ones(2, 8)).sum() * 0).backward(); optimizer.zero_grad(set_to_none=True)"),
    # Process groups.
    Row(
        "groups are made anew",
        step="if n in (1, 3):\n    dist.destroy_process_group(); dist.init_process_group('gloo', rank=0, world_size=1, store=dist.HashStore())\nt = torch.ones(1); dist.all_reduce(t)",
    ),
    Row(
        "new groups",
        step="g = dist.new_group([0]); t = torch.ones(1); dist.all_reduce(t, group=g); dist.broadcast(t, 0); dist.barrier()",
    ),
    Row(
        "a group in mid-run",
        group="",
        step="if n == 2: dist.init_process_group('gloo', rank=0, world_size=1, store=dist.HashStore())",
    ),
    Row("a fake backend", group="fake", step="t = torch.ones(1); dist.all_reduce(t); time.sleep(0.1)"),
    Row("a fake backend, own interpreter", own=True, group="fake", step="t = torch.ones(1); dist.all_reduce(t)"),
    Row(
        "a backend of the user",
        group="""
from torch.testing._internal.distributed.fake_pg import FakeProcessGroup
class Mine(dist.ProcessGroup):
    def __init__(self, rank, size): super().__init__(rank, size)
    def getBackendName(self): return "mine"
dist.Backend.register_backend("mine", lambda store, rank, size, timeout: Mine(rank, size), devices=["cpu"])
dist.init_process_group("mine", rank=0, world_size=1, store=dist.HashStore())
""",
        step="time.sleep(0.1)",
    ),
    Row(
        "init_process_group fails first",
        group="try: dist.init_process_group('nonsense', rank=0, world_size=1, store=dist.HashStore())\nexcept Exception as e: print(type(e), e, flush=True)\ndist.init_process_group('gloo', rank=0, world_size=1, store=dist.HashStore())",
    ),
    Row(
        "group is destroyed twice",
        end="dist.destroy_process_group()\ntry: dist.destroy_process_group()\nexcept Exception as e: print(type(e), flush=True)",
        destroy=False,
    ),
    Row("a collective fails", step="if n == 3: dist.all_reduce('text')"),
    Row(
        "store of TCP",
        group="dist.init_process_group('gloo', rank=0, world_size=1, store=dist.TCPStore('127.0.0.1', 0, 1, True))",
    ),
    Row(
        "recorders are started twice",
        after="if MODE == 'two lines': recorders.start(FOLDER); recorders.start(FOLDER + '2', steps=True)",
    ),
    Row(
        "memory recorder",
        after="""
import contextlib
memory = None
""",
        step="if MODE != 'without':\n    memory = memory or __import__('workbench.recorders', fromlist=['x']).MemoryRecorder(FOLDER + '/memory', model, optimizer, freq=1)\nwith memory.step(n + 1) if memory else contextlib.nullcontext():\n    optimizer.zero_grad(); model(torch.ones(2, 8)).sum().backward(); optimizer.step()",
        end="if memory: memory.close()\nwith torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]): model(torch.ones(2, 8))",
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
    "abort",
    "SIGKILL",
    "an exception in a thread",
    "recorders start in a thread",
    "handlers of all signals before",
    "handlers of all signals after",
    "default SIGTERM",
    "SIGTERM chains",
    "sigwait",
    "excepthook before",
    "threading.excepthook after",
    "stdout and stderr are None",
    "faulthandler.register, after",
    "filters of warnings",
    "descriptors are closed",
    "limit of open files",
    "folder is removed",
    "folder cannot be made",
    "a link to a file in place of our files",
    "dispatch mode",
    "profiler of the user",
    "optimizer is freed at once",
    "LBFGS",
    "groups are made anew",
    "a fake backend",
    "a collective fails",
    "recorders are started twice",
    "memory recorder",
}
"""The names of the rows that run with the quick tests, one or more of each group; each of the others resembles one of them, or takes seconds."""


def marks_of(row: Row) -> tuple[pytest.MarkDecorator, ...]:
    return () if row.name in QUICK else (pytest.mark.slow,)


@pytest.fixture(scope="module")
def surroundings() -> Iterator[Surroundings]:
    """Fixture: runs rows; the processes that have imported torch are shared by all rows."""
    made = Surroundings()
    yield made
    made.close()


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name, marks=marks_of(row)) for row in ROWS])
def test_a_script_runs_with_the_recorders_as_without(row: Row, surroundings: Surroundings, tmp_path: Path) -> None:
    expected = surroundings.run(row, WITHOUT, tmp_path / "without")
    for mode in (TWO_LINES, LAUNCHER):
        ended = surroundings.run(row, mode, tmp_path / mode)
        assert (mode, ended.status) == (mode, expected.status), ended.stderr.decode(errors="replace")
        assert (mode, ended.stdout) == (mode, expected.stdout)
        assert (mode, without_our_line(ended.stderr)) == (mode, without_our_line(expected.stderr))
        assert (mode, ended.files) == (mode, expected.files)
        assert ended.cpu_s < expected.cpu_s + MOST_CPU_S
