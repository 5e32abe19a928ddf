# ruff: noqa: E501  (scripts in a table)
"""A script runs with the recorders exactly as without: its hooks, interpreter, limits, folder, torch and process groups.

The table is of the same kind as in `test_same_as_without.py`.
"""

from pathlib import Path

import pytest
from surroundings import FORK, Row, Surroundings, assert_same, parameters

ROWS = [
    # Hooks.
    Row(
        "excepthook before",
        early="sys.excepthook = lambda *a: print('hook', a[0].__name__, flush=True)",
        step="if n == 3: raise ValueError",
    ),
    Row(
        "excepthook after",
        after="sys.excepthook = lambda *a: print('hook', a[0].__name__, flush=True)",
        step="if n == 3: raise ValueError",
    ),
    Row("excepthook that fails", early="sys.excepthook = lambda *a: 1 / 0", step="if n == 3: raise ValueError"),
    Row(
        "a console of the script, and errors that it prints",
        group="",
        end="""
import code
console = code.InteractiveConsole({"__name__": "console"})
console.push("1 / 0")
try: divmod(1, 0)
except ZeroDivisionError: sys.__excepthook__(*sys.exc_info())
print(sys.excepthook is sys.__excepthook__, flush=True)
console.push("raise SystemExit(7)")
""",
    ),
    Row(
        "the class of loggers",
        before="""
import logging
class Loud(logging.Logger):
    def __init__(self, name): print("logger", name, flush=True); super().__init__(name)
logging.setLoggerClass(Loud)
""",
    ),
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
    Row(
        "faulthandler as by default",
        end="import faulthandler\nprint(faulthandler.is_enabled(), faulthandler.unregister(signal.SIGTERM), faulthandler.is_enabled(), flush=True); faulthandler.disable()",
    ),
    Row(
        "faulthandler.register, a child",
        after="import faulthandler\nlog = open('/dev/null', 'w'); faulthandler.register(signal.SIGTERM, log)",
        step=FORK.format(child="os.kill(os.getpid(), signal.SIGTERM); os._exit(7)"),
    ),
    # The interpreter.
    *(
        Row(f"python {' '.join(options)}", python=options, step=step)
        for options, step in (
            (("-O", "-W", "error", "-X", "dev"), "assert False"),
            (("-I",), "pass"),
            (("-P", "-u", "-B"), "if n == 3: raise ValueError(__doc__)"),
        )
    ),
    Row(
        "locale C, no UTF-8 mode",
        own=True,
        environment={
            "LC_ALL": "C",
            "PYTHONUTF8": "0",
            "PYTHONCOERCECLOCALE": "0",
            "PYTHONPATH_": "x",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        },
        end="print(os.environ['PYTHONPATH_'], sys.stdout.encoding, ascii(os.listdir('.')), flush=True)",
    ),
    Row(
        "recursion limit",
        end="sys.setrecursionlimit(200)\ndef depth(k):\n    try: return depth(k + 1)\n    except RecursionError: return k\nprint(depth(0), flush=True)",
    ),
    Row("gc.disable", early="import gc; gc.disable()", end="print(gc.isenabled(), flush=True)"),
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
    Row("the environment is cleared early", early="os.environ.clear()", own=True),
    Row("the environment is cleared before the group", before="os.environ.clear()"),
    Row("the environment is cleared before the first step, no group", after="os.environ.clear()", group=""),
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
    *(
        Row(
            f"limit of the size of files, {effect}",
            early=f"import resource\nsignal.signal(signal.SIGXFSZ, signal.{effect}); resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))",
            step="time.sleep(0.03)",
        )
        for effect in ("SIG_IGN", "SIG_DFL")
    ),
    Row(
        "limit of the size of files, in mid-run, with its signal",
        step="import resource\nif n == 2: signal.signal(signal.SIGXFSZ, signal.SIG_DFL); resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))",
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
            (
                "file with another name",
                "open('victim', 'w').write('precious') if not os.path.exists('victim') else None; os.link('victim', path)",
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
        step="torch.autograd.backward(model(torch.ones(2, 8)).sum())",
        end="mode.__exit__(None, None, None); print(len(seen), flush=True)",
    ),
    Row(
        "loss of a class of the user, and a complex one",
        before="""
class Loss(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        print(getattr(function, "__name__", function), flush=True)
        return super().__torch_function__(function, types, arguments, named or {})
""",
        step="torch.autograd.backward(model(torch.ones(2, 8)).sum().as_subclass(Loss))\nx = torch.ones(1, dtype=torch.complex64, requires_grad=True); torch.autograd.backward(x.sum(), torch.ones((), dtype=torch.complex64))",
    ),
    Row(
        "step of the optimizer is compiled",
        before="import logging\nlogging.getLogger('torch').setLevel(logging.ERROR)",
        end="@torch.compile(backend='eager', fullgraph=True)\ndef compiled(): optimizer.step()\nfor _ in range(2): model(torch.ones(2, 8)).sum().backward(); compiled()\nprint(model.weight.sum().item(), flush=True)",
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
    Row(
        "memory recorder under modes of the script",
        after="""
import collections, contextlib
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
memory, seen = None, collections.Counter()
class Operations(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        seen[str(function)] += 1
        return function(*args, **(kwargs or {}))
class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        # The profiler itself looks at the gradients of parameters.
        if function.__name__ != "__get__": seen[function.__name__] += 1
        return function(*args, **(kwargs or {}))
""",
        step="""
if MODE != "without":
    memory = memory or __import__("workbench.recorders", fromlist=["x"]).MemoryRecorder(FOLDER + "/memory", model, optimizer, freq=1)
with Operations(), Functions(), memory.step(n + 1) if memory else contextlib.nullcontext():
    optimizer.zero_grad(); model(torch.ones(2, 8)).tanh().sum().backward(); optimizer.step()
""",
        end="if memory: memory.close()\nprint(seen, flush=True)",
    ),
    Row(
        "memory recorder beside a profiler of the script and transforms",
        after="import contextlib\nmemory = None",
        step="""
if MODE != "without":
    memory = memory or __import__("workbench.recorders", fromlist=["x"]).MemoryRecorder(FOLDER + "/memory", model, optimizer, freq=1)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) if n < 2 else contextlib.nullcontext() as seen:
    with memory.step(n + 1) if memory else contextlib.nullcontext():
        optimizer.zero_grad(); model(torch.ones(2, 8)).sum().backward(); optimizer.step()
        x = torch.ones(2)
        print(torch.func.grad(lambda x: (x**2).sum())(x), torch.func.hessian(lambda x: (x**3).sum())(x), torch.func.vmap(torch.sin)(x), flush=True)
if seen: print("aten::addmm" in {event.key for event in seen.key_averages()}, flush=True)
""",
        end="if memory: memory.close()",
    ),
]


QUICK = {
    "a console of the script, and errors that it prints",
    "the class of loggers",
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
    "memory recorder under modes of the script",
}
"""The names of the rows that run with the quick tests, one or more of each group; each of the others resembles one of them, or takes seconds."""


@pytest.mark.parametrize("row", parameters(ROWS, QUICK))
def test_a_script_has_the_same_settings_with_the_recorders_as_without(
    row: Row, surroundings: Surroundings, tmp_path: Path
) -> None:
    assert_same(row, surroundings, tmp_path)
