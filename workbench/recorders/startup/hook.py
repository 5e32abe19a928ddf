"""Wrap functions of torch when their module is imported, so that an unchanged training script is recorded.

The recorders start when the script calls `init_process_group`. Without a process group, the first optimizer step starts
the step recorder. This module is imported before torch is, or in the middle of that, so it must not import torch.
"""

import datetime as dt
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from workbench.recorders import signals
from workbench.recorders.own_files import harmless, note_failure
from workbench.recorders.stand_in_importlib_bootstrap import not_compiled
from workbench.recorders.startup.settings import settings

if TYPE_CHECKING:
    from workbench.recorders.startup.recording import Recording

_RECORDERS = str(Path(__file__).resolve().parents[1]) + os.sep
_TIMEOUT_POSITION = 2
"""The index of the timeout among the positional arguments of `init_process_group`."""


@functools.cache
def recording() -> "Recording":
    """Return the `Recording` of this process, the object that holds its recorders; the first call creates it.

    A forked child process gets an object of its own.
    """
    # Not before it is needed: this module is imported in the middle of torch's own import.
    from workbench.recorders.startup.recording import Recording

    made = Recording(settings())
    signals.call_in_children(made.abandon)
    signals.call_in_children(recording.cache_clear)
    return made


def safely(act: Callable[[], object]) -> None:
    """Call `act`; if it raises an exception, say so once in this process, and let the script continue."""
    harmless(act)()


def hide_our_frames(error: BaseException) -> None:
    """Remove the recorders' own frames from the tracebacks of an exception that is about to be printed."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        waiting += [each.__cause__, each.__context__]
        each.__traceback__ = trace = _after_our_frames(each.__traceback__)
        while trace is not None:
            following = _after_our_frames(trace.tb_next)
            trace.tb_next = following
            trace = following


def _after_our_frames(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_RECORDERS):
        trace = trace.tb_next
    return trace


def patch_distributed(module: ModuleType) -> None:
    """Wrap `init_process_group` in `module` (distributed_c10d), so that its call attaches the recorders.

    From now on, an exception that ends this process is recorded too, even before `init_process_group` is called.
    """
    if not settings().record:
        return
    original = module.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        timeout_s = settings().timeout_s
        if timeout_s and len(args) <= _TIMEOUT_POSITION and kwargs.get("timeout") is None:
            kwargs["timeout"] = dt.timedelta(seconds=timeout_s)
        result = original(*args, **kwargs)
        safely(lambda: recording().attach())
        return result

    module.init_process_group = init_process_group  # type: ignore[attr-defined]
    note_errors(recording)


def note_errors(recording: "Callable[[], Recording]") -> None:
    """Record an exception that ends this process, unless a hang recorder already records it.

    `recording` returns the object that records it.
    """
    previous = sys.excepthook

    def note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        error.__traceback__ = trace
        hide_our_frames(error)
        previous(kind, error, error.__traceback__)
        if ends_process(error):
            safely(lambda: recording().failed(error))

    set_excepthook(note)


def set_excepthook(hook: Callable[[type[BaseException], BaseException, TracebackType | None], Any]) -> None:
    """Set the function that prints uncaught exceptions; it is the default one, too, if the present one is.

    Consoles print errors in another way where the hook is somebody's own. An audit hook, which nobody sees, gets such
    exceptions too, but also each call of `id`: a step of AdamW has three for each parameter, of 0.4 us each.
    """
    is_default = sys.excepthook is sys.__excepthook__
    sys.excepthook = hook
    if is_default:
        sys.__excepthook__ = hook


def ends_process(error: BaseException) -> bool:
    """Return whether Python prints `error` because nothing has caught it; the script may print others, and go on.

    Consoles keep the error of a line in `sys.last_value`, too, but its frames have callers.
    """
    trace = error.__traceback__
    return getattr(sys, "last_value", None) is error and (trace is None or trace.tb_frame.f_back is None)


def patch_optimizer(module: ModuleType) -> None:
    """Register the functions `before_step` and `_after_step` as hooks on all optimizers, to measure training steps.

    `module` is `torch.optim.optimizer`, which has just been imported. Nothing is done if the launcher has switched
    recording off.
    """
    if not settings().record:
        return
    module.register_optimizer_step_pre_hook(not_compiled(before_step))
    module.register_optimizer_step_post_hook(not_compiled(_after_step))


def patch_torchtitan() -> None:
    """Prepare this process for torchtitan, just before torchtitan is imported; else do nothing.

    The launcher says whether the script is torchtitan.
    """
    if settings().torchtitan:
        from workbench.recorders.startup.torchtitan_on_cpu import prepare

        prepare()


def before_step(optimizer: object, _args: object, _kwargs: object) -> None:
    """Report to the `Recording` of this process that an optimizer step begins (a hook of torch.optim)."""
    if sys.modules["torch"].compiler.is_dynamo_compiling():  # it would trace our code into the script's graph
        return
    try:
        recording().before_step(optimizer)
    except Exception as error:  # noqa: BLE001  # the job continues
        note_failure(error)


def _after_step(optimizer: object, _args: object, _kwargs: object) -> None:
    """Report to the `Recording` of this process that an optimizer step has ended (a hook of torch.optim)."""
    if sys.modules["torch"].compiler.is_dynamo_compiling():  # it would trace our code into the script's graph
        return
    try:
        recording().after_step(optimizer)
    except Exception as error:  # noqa: BLE001  # the job continues
        note_failure(error)
