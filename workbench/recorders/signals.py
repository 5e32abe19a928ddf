"""Use signals of the process that nobody else uses, so that those of the script keep their effect.

The handlers are installed by faulthandler, in C: Python's table of handlers, which frameworks ask before they install
their own, does not show them, and they run while the main thread is stuck or the GIL is held. A handler that the script
installs later replaces ours.
"""

import _thread
import collections
import contextlib
import ctypes
import faulthandler
import functools
import inspect
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace, TracebackType
from typing import IO, Any

_UNUSED_RT_SIGNALS = 6
"""The number of the highest and lowest realtime signals that are left to others: debuggers and runtimes take these."""
_ACTION_BYTES = 512
"""More than the size of C's `struct sigaction` on any system."""
_MASK_BYTES = 128
"""No less than the size of C's `sigset_t` on any system."""
_OF_FAULTS = {
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGABRT,
    signal.SIGTRAP,
    signal.SIGSYS,
}
"""The signals of a fault, which the thread that causes it gets; blocked, they would end the process without a stack."""
_UNTIL_MEMORY_S, _UNTIL_STARTED_S = 0.1, 5
_OUR_CODE = str(Path(__file__).parent) + os.sep
_KNOWN_MODULES = sys.stdlib_module_names | {"builtins", "torch", "numpy", "workbench"}
_ours: set[int] = set()
"""The signals for which we have registered with faulthandler."""
_requests: set[int] = set()
"""The realtime signals on which our handler writes the stack."""
_in_children: list[Callable[[], None]] = []
"""What is called in the next forked child."""


_faulthandler = SimpleNamespace(**vars(faulthandler))
"""The functions of faulthandler themselves; in the module, stand-ins of ours take their place."""
_by_script: set[int] = set()
"""The signals for which the script has registered with faulthandler, in place of us."""


@functools.cache
def conceal_faulthandler() -> None:
    """Let the functions of faulthandler tell the script only what it has done with them itself.

    A script that enables faulthandler unless it is enabled, so as to see a crash on its stderr, would not do so because
    of us. And what it registers in our place is not ours to unregister.
    """
    was_enabled = _faulthandler.is_enabled()
    is_enabled = [was_enabled]

    @functools.wraps(_faulthandler.enable)
    def enable(*args: Any, **kwargs: Any) -> Any:
        is_enabled[:] = [True]
        return _faulthandler.enable(*args, **kwargs)

    @functools.wraps(_faulthandler.disable)
    def disable() -> Any:
        _faulthandler.disable()
        before, is_enabled[:] = is_enabled[0], [False]
        return before

    @functools.wraps(_faulthandler.register)
    def register(signum: int, *args: Any, **kwargs: Any) -> Any:
        result = _faulthandler.register(signum, *args, **kwargs)
        _by_script.add(signum)
        return result

    @functools.wraps(_faulthandler.unregister)
    def unregister(signum: int) -> Any:
        if signum in _ours and signum not in _by_script:
            return False
        _by_script.discard(signum)
        _ours.discard(signum)
        return _faulthandler.unregister(signum)

    module: Any = faulthandler
    module.is_enabled = functools.wraps(_faulthandler.is_enabled)(lambda: is_enabled[0])
    module.enable, module.disable, module.register, module.unregister = enable, disable, register, unregister


def enable_faulthandler(descriptor: int) -> None:
    """Let faulthandler write all stacks to a file descriptor at a fatal signal, until the script enables it itself."""
    conceal_faulthandler()
    _faulthandler.enable(descriptor, all_threads=True)


def is_ours(number: int) -> bool:
    """Return whether the handler of a signal is still ours."""
    return number in _ours and number not in _by_script and signal.getsignal(number) == signal.SIG_DFL


def is_free(number: int) -> bool:
    """Return whether a signal has its default effect: no handler, of Python or C, and neither ignored nor blocked."""
    if signal.getsignal(number) != signal.SIG_DFL:
        return False
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError as error:  # no Linux
        raise_of_script(error)
        return True
    masks = [line.split()[1] for line in lines if line.startswith(("SigBlk:", "SigIgn:", "SigCgt:"))]
    return not any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


def free_signal() -> int | None:
    """Return a realtime signal that has its default effect in this process; None without one, as on macOS."""
    first, last = getattr(signal, "SIGRTMIN", 0), getattr(signal, "SIGRTMAX", -1)
    candidates = range(last - _UNUSED_RT_SIGNALS, first + _UNUSED_RT_SIGNALS, -1)
    return next((number for number in candidates if is_free(number)), None)


@contextlib.contextmanager
def kept(number: int) -> Iterator[None]:
    """Restore the effect of the signal `number` after this context, in which a library of C++ may change it."""
    sigaction, before = ctypes.CDLL(None).sigaction, ctypes.create_string_buffer(_ACTION_BYTES)
    sigaction(number, None, before)
    try:
        yield
    finally:
        sigaction(number, before, None)


def write_stacks_on(number: int, file: IO[str] | int) -> None:
    """Let faulthandler write the stacks of all threads to `file` when this process gets the signal `number`."""
    conceal_faulthandler()
    _faulthandler.register(number, file=file, all_threads=True)
    _ours.add(number)
    if number >= getattr(signal, "SIGRTMIN", signal.NSIG):
        _requests.add(number)


def die_of(number: int) -> None:
    """End this process by the signal `number`, unless the script handles it by now.

    The calling thread takes the signal itself: the script may wait for this signal in another thread, and it was not
    that thread which got it first.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    signal.pthread_kill(threading.get_ident(), number)


def raise_of_script(error: BaseException) -> None:
    """Raise an exception again if it comes from the script itself, which it has interrupted in our code.

    A handler of a signal raises where the main thread just is, such as that of a time limit; its frame has the frame
    that it has interrupted among its arguments. What one thread raises in another one has no frame of its own, but a
    type of the script's.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        interrupted, trace = trace.tb_frame, trace.tb_next
        if _has_argument(trace.tb_frame, interrupted):
            raise error
    if trace is None or not trace.tb_frame.f_code.co_filename.startswith(_OUR_CODE):
        return
    if type(error).__module__.partition(".")[0] not in _KNOWN_MODULES:
        raise error


def _has_argument(frame: FrameType, wanted: FrameType) -> bool:
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    for value in (frame.f_locals.get(name) for name in code.co_varnames[:count]):
        if value is wanted or (type(value) is tuple and any(one is wanted for one in value)):
            return True
    return False


class ignoring(contextlib.suppress):  # noqa: N801  # used as the function `contextlib.suppress` is
    """Ignores errors of our own calls inside this context, but none that the script has raised there."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Return whether the error is ignored; raise it if it is of the script."""
        if error is not None:
            raise_of_script(error)
        return super().__exit__(kind, error, trace)


def release(number: int) -> None:
    """Restore the effect of the signal `number` before `write_stack_on`, unless the script has taken it meanwhile."""
    if is_ours(number):
        _ours.discard(number)
        _faulthandler.unregister(number)


@contextlib.contextmanager
def not_for_new_threads() -> Iterator[None]:
    """Return a context in which threads of ours are started, so that they take no signals of the process.

    The kernel gives a signal to any thread that has not blocked it. Where the script blocks a signal in order to wait
    for it, or to finish a step first, a thread of ours would take it, and the process would end. The signals on which
    our handler writes the stack are left to all threads: the script has no use for them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _OF_FAULTS - _requests)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_thread(run: Callable[[], object]) -> bool:
    """Start a thread of ours, and return whether it could be started.

    It takes no signals of the script, and is not in `threading.enumerate()`: a script that joins all threads, or waits
    until it has only one, would wait forever for ours. Where the job has no memory left for the moment, `run` is called
    again until it returns: Python would end the thread and print an error among the script's output.
    """
    runs = _thread.allocate_lock()
    runs.acquire()

    def endure() -> None:
        runs.release()
        while True:
            try:
                run()
            except MemoryError:
                time.sleep(_UNTIL_MEMORY_S)
            else:
                return

    try:
        with not_for_new_threads():
            _thread.start_new_thread(endure, ())
            runs.acquire(timeout=_UNTIL_STARTED_S)  # a limit that the script sets next must not hit a thread half made
    except RuntimeError:
        return False
    return True


def call_in_children(act: Callable[[], None]) -> None:
    """Call `act` in each forked child, before the child gets any signal.

    A child inherits our handlers, and would not end by their signals. Worse, a handler may write to a pipe of its
    parent.
    """
    _register_once()
    _in_children.append(act)


@functools.cache
def _register_once() -> None:
    """Block the signals of a thread while it forks, so that no handler of the script runs in a hook of ours.

    What it raised there would be lost. For the same reason, the hooks around ours are chains of functions in C: of each
    iterator, the next item is taken. The function `signal.pthread_sigmask` itself would run handlers.
    """
    libc, mask = ctypes.PyDLL(None), ctypes.c_char * _MASK_BYTES
    libc.pthread_sigmask.argtypes = ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p
    every = mask()
    libc.sigfillset(every)
    for number in _OF_FAULTS:
        libc.sigdelset(every, int(number))
    masks: collections.defaultdict[int, Any] = collections.defaultdict(mask)
    thread = iter(threading.get_ident, None)
    block = map(functools.partial(libc.pthread_sigmask, signal.SIG_BLOCK, every), map(masks.__getitem__, thread))
    before = map(masks.pop, thread, itertools.repeat(None))
    restore = map(functools.partial(libc.pthread_sigmask, signal.SIG_SETMASK), before, itertools.repeat(None))
    os.register_at_fork(
        before=functools.partial(next, block),
        after_in_parent=functools.partial(next, restore),
        after_in_child=_call_in_child,
    )
    os.register_at_fork(after_in_child=functools.partial(next, restore))


def _call_in_child() -> None:
    for act in _in_children:
        act()
    _in_children.clear()
