"""Attach the recorders to a training script that was not written for them, with two lines:

    from workbench import recorders
    recorders.start("outputs")          # on every rank, after init_process_group if there is one

The heartbeat of a rank is a time stamp in a file; when it stops advancing, the rank hangs. Such a script does not say
when a step begins, so the heartbeat advances with each collective.
"""

import atexit
import functools
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from multiprocessing.util import Finalize
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from workbench.recorders import signals
from workbench.recorders.files import RankInfo, require_descriptors
from workbench.recorders.hang.flight_recorder import FlightRecorder
from workbench.recorders.hang.heartbeat import DONE, NO_GROUP, Heartbeat
from workbench.recorders.hang.rank_exit import remember_stack
from workbench.recorders.own_files import note, note_failure
from workbench.recorders.startup.hook import ends_process, hide_our_frames, note_errors, safely, set_excepthook
from workbench.recorders.startup.settings import is_recorded_by_launcher
from workbench.recorders.timing.step_log import StepRecorder

_CHECKS_PER_TIMEOUT = 40
_LONGEST_CHECK_INTERVAL_S = 1.0
_RING_ON_BY_DEFAULT_SINCE = (2, 11)


def start(
    folder: str | Path = "outputs",
    *,
    timeout_s: float | None = None,
    steps: bool = False,
    profile_step: int | None = None,
) -> "Attached":
    """Start the recorders on this rank: when the job hangs or dies, dumps are collected in `folder`/dumps.

    `timeout_s` is the timeout of the job's collectives; None means the timeout of the default process group. Dumps are
    taken well before it expires. An exception that ends the script is recorded too. A second call returns the object of
    the first call.

    With `steps` or `profile_step`, everything that `workbench launch -- COMMAND` records is recorded: steps and their
    phases; on CUDA the memory history, with a snapshot when memory runs out; and profiler traces of step `profile_step`
    (from 1) and when somebody touches `profile_now` in the folder. Steps are counted from the first optimizer step
    after this call.

    Without a process group there are no collectives to watch. Then all of this but the dumps is recorded, and the
    methods of the returned object do nothing. If the script creates a group later, the dumps start at the next
    optimizer step. Recorders that cannot start print why, and the script continues.
    """
    safely(lambda: _start_recorders(Path(folder), timeout_s, profile_step, steps=steps))
    return Attached.now or NotAttached()


def _start_recorders(folder: Path, timeout_s: float | None, profile_step: int | None, *, steps: bool) -> None:
    """Start the recorders that `start` describes; do nothing if they run already, or if the launcher starts its own."""
    from workbench.recorders.startup.recording import Recording

    has_group = dist.is_available() and dist.is_initialized()
    if Attached.now is not None or (not has_group and is_recorded_by_launcher()):
        return
    if steps or profile_step or not has_group or Recording.of_script:
        FlightRecorder.prepare(folder)  # for a group that the script creates later
        _record_steps(folder, timeout_s, profile_step)
    else:
        Attached.now = Attached(folder, _default_timeout() if timeout_s is None else timeout_s)


def _record_steps(folder: Path, timeout_s: float | None, profile_step: int | None) -> None:
    """Attach the recorders of steps, memory and traces, and of hangs if there is a process group.

    `folder` is the run's folder. `timeout_s` is the timeout of collectives; None means the timeout of the default
    process group. `profile_step` is the number of a step to profile; None means no step. Hooks on all optimizers mark
    the steps; without a process group, they start the recorders of hangs once there is one.
    """
    from workbench.recorders.startup.recording import Recording
    from workbench.recorders.startup.settings import Settings

    recording = Recording.of_script
    if recording is None:
        settings = Settings(
            folder=folder, init_timeout_s=timeout_s, train_timeout_s=timeout_s, profile_step=profile_step
        )
        recording = Recording.of_script = Recording(settings)
        signals.call_in_children(recording.abandon)
        register_optimizer_step_pre_hook(recording.before_step)
        register_optimizer_step_post_hook(recording.after_step)
        note_errors(lambda: recording)
    recording.start()


def attach(
    folder: Path,
    timeouts_s: tuple[float | None, float | None],
    steps: StepRecorder,
    on_error: Callable[[BaseException], None],
) -> "Attached":
    """Start the hang recorders on this rank, and return the object that holds them.

    `folder` is the run's folder. `timeouts_s` has the timeout of collectives until the first step has ended, and the
    timeout afterwards; None means the timeout of the default process group. The hang recorders read the current step
    from `steps`. If an exception ends the script, `on_error` is called with it.
    """
    init, train = (_default_timeout() if timeout is None else timeout for timeout in timeouts_s)
    Attached.now = Attached(folder, init, steps, on_error, train_timeout_s=train)
    return Attached.now


def _default_timeout() -> float:
    """Return the timeout of collectives in the default process group, in seconds."""
    group = dist.distributed_c10d._get_default_group()  # noqa: SLF001
    try:
        return float(group._get_backend(group._device_types[0]).options._timeout.total_seconds())  # noqa: SLF001
    except (AttributeError, IndexError, RuntimeError):  # a backend without options, or of the script
        return float(dist.constants.default_pg_timeout.total_seconds())


class Attached:
    """The hang recorders of a rank whose training script does not call the recorders itself.

    `Attached.now` is the object that is active in this process, or None.
    """

    now: "Attached | None" = None

    def __init__(
        self,
        folder: Path,
        timeout_s: float,
        steps: StepRecorder | None = None,
        on_error: Callable[[BaseException], None] | None = None,
        *,
        train_timeout_s: float | None = None,
    ) -> None:
        require_descriptors()
        _warn_without_ring()
        self._pid = os.getpid()
        FlightRecorder.prepare(folder)
        self._steps, self._on_error = steps, on_error
        path = folder / "steps" / f"heartbeat_{RankInfo.here().rank}.bin"
        self._heartbeat = steps.heartbeat if steps else Heartbeat(path)
        self._beat()
        train_s = train_timeout_s or timeout_s
        self.flight = FlightRecorder(folder, init_timeout_s=timeout_s, train_timeout_s=train_s)
        try:
            self.flight.start()
        except Exception:
            self.flight.close()
            raise
        self._beat()  # starting takes seconds on a busy host, in which this rank does not stall
        self._check_interval_s = min(_LONGEST_CHECK_INTERVAL_S, min(timeout_s, train_s) / _CHECKS_PER_TIMEOUT)
        self._ended = threading.Event()
        self._last_beat = threading.Lock()
        signals.start_thread(self._watch)
        self._previous_hook = sys.excepthook
        self._printed = 0
        """The `id` of the last exception that the script has printed by the hook and survived; it is not kept alive."""
        self._hook = self._uncaught
        set_excepthook(self._hook)
        self._exit: SystemExit | None = None
        self._previous_exit = sys.exit
        sys.exit = self._own_exit = self._exit_function()
        # Before the functions of `atexit`: what these raise is printed by nobody who could hide our frame.
        threading._register_atexit(self._restore_exit)  # type: ignore[attr-defined]  # noqa: SLF001
        if multiprocessing.parent_process() is None:
            atexit.register(self.close)
        else:
            # `multiprocessing` skips finalizers without a priority when the process exits.
            Finalize(None, self._end_of_child, exitpriority=100)

    def close(self) -> None:
        """Record how the rank ended: without an error, or with an exception or a failing call of `sys.exit`.

        This method is called when the interpreter exits, but not after `os._exit`. It does nothing in a forked child,
        whose end says nothing about the rank.
        """
        if self._ended.is_set() or os.getpid() != self._pid:
            return
        safely(self._close)

    def _restore_exit(self) -> None:
        if sys.exit is self._own_exit:
            sys.exit = self._previous_exit

    def _close(self) -> None:
        self._restore_exit()
        if error := self._exit or self._hidden_error():
            # What runs a script, such as coverage, prints its exception by the hook, and then exits.
            cause = error.__context__ if isinstance(error, SystemExit) else None
            self._record(cause if cause and id(cause) == self._printed else error)
            return
        with self._last_beat:
            self._ended.set()
            self._heartbeat.beat(self._steps.finished_step if self._steps else 0, DONE)
            self._heartbeat.flush()
        self.flight.close()

    def _hidden_error(self) -> BaseException | None:
        """Return the uncaught exception if the script has replaced `sys.excepthook`, so that this object missed it.

        Python keeps such an exception in `sys.last_value`. Return None if there is no exception, or if this object's
        hook is still installed.
        """
        error = getattr(sys, "last_value", None)
        is_missed = getattr(sys, "excepthook", None) is not self._hook
        return error if error and is_missed and ends_process(error) else None

    def _exit_function(self) -> Callable[..., NoReturn]:
        """Return a function that exits like `sys.exit`, and remembers the SystemExit if its status means a failure.

        `close` records the failure later. It cannot be recorded now, because the script may catch the SystemExit and
        continue. And `sys.excepthook` is of no use, because Python does not call it for a SystemExit.
        """
        previous = self._previous_exit

        # With the name and module of the original, pickling stores it by name, as in `Process(target=sys.exit)`.
        @functools.wraps(previous)
        def exit_as_before(*args: Any, **kwargs: Any) -> NoReturn:
            try:
                previous(*args, **kwargs)
            except SystemExit as error:
                self._exit = error if error.code else None
                if error.code:
                    remember_stack(error)
                raise
            raise AssertionError

        return exit_as_before

    def follow(self, steps: StepRecorder) -> None:
        """Read this rank's current step and phase from the step recorder `steps` from now on."""
        self._steps, self._heartbeat = steps, steps.heartbeat

    @property
    def _position(self) -> tuple[int, str]:
        """The current (step, phase) of this rank; (0, "running") if the script's steps are not timed."""
        return (self._steps.current_step, self._steps.current_phase) if self._steps else (0, "running")

    def _beat(self) -> None:
        step, phase = self._position
        self._heartbeat.beat(step, phase)

    def _end_of_child(self) -> None:
        """Record how this process ends, if Python's `multiprocessing` started it.

        Such a process calls neither `atexit` functions nor `sys.excepthook`.
        """
        error = sys.exc_info()[1]
        # torch.multiprocessing.spawn turns an exception into an exit.
        error = error.__context__ if isinstance(error, SystemExit) else error
        if error is None:
            self.close()
        elif not self._ended.is_set():
            self._record(error)

    def _watch(self) -> None:
        """Advance the heartbeat whenever this rank has issued new collectives; a thread runs this until the rank ends.

        The heartbeat stops if the rank is stuck, because a stuck rank issues no collectives. It also stops while the
        GIL is held, because this thread cannot run then. When the script destroys its process groups, the phase
        `NO_GROUP` is written: other ranks may still wait for this rank.
        """
        before: dict[str, int] = {}
        while not self._ended.wait(self._check_interval_s):
            try:
                now = self.flight.sequences()
                if before and not now:
                    self._beat_unless_ended(NO_GROUP)
                    before = now
                    continue
                if now:
                    self.flight.refresh()  # the script may have taken the signal that requests stacks
            except (RuntimeError, KeyError, ValueError):  # groups come and go on the main thread
                continue
            except OSError as error:  # the folder was removed, or its disk is full
                note_failure(error)
                continue
            if now != before:
                self._beat_unless_ended()
            before = now

    def _beat_unless_ended(self, phase: str | None = None) -> None:
        """Write a heartbeat with the given or the current phase, unless the rank's end has already been recorded.

        The watching thread may notice only after the end that the process groups were destroyed. Its heartbeat must not
        overwrite the record of the end.
        """
        with self._last_beat:
            if not self._ended.is_set():
                step, current = self._position
                self._heartbeat.beat(step, phase or current)

    def _uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Record an exception that ends the script; the rank can still write its dump.

        This method replaces `sys.excepthook` and has the same arguments.
        """
        error.__traceback__ = trace
        hide_our_frames(error)
        self._previous_hook(kind, error, error.__traceback__)
        if os.getpid() != self._pid:
            return
        if ends_process(error):
            safely(lambda: self._record(error))
        else:
            self._printed = id(error)

    def _record(self, error: BaseException) -> None:
        self._ended.set()
        self._heartbeat.flush()
        step, phase = self._position
        if on_error := self._on_error:
            safely(lambda: on_error(error))
        safely(lambda: self.flight.failed(error, step=step, phase=phase))
        self.flight.stop_serving()


class NotAttached(Attached):
    """Stands for the hang recorders in a process that has none; its methods do nothing."""

    def __init__(self) -> None: ...  # it starts nothing

    def close(self) -> None:
        """Do nothing, because no hang recorder runs."""

    def follow(self, steps: StepRecorder) -> None:
        """Do nothing, because no hang recorder runs."""


def _warn_without_ring() -> None:
    """Warn if Flight Recorder, PyTorch's log of recent collectives, is off.

    It cannot be turned on now, because PyTorch has already read the size of its ring buffer.
    """
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    # The second name is the older one, which torch still reads.
    sizes = (os.environ.get(name) for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"))
    size = next((size for size in sizes if size), "2000" if version >= _RING_ON_BY_DEFAULT_SINCE else "0")
    if size == "0":
        note("Flight Recorder is off: set TORCH_FR_BUFFER_SIZE=20000 before init_process_group")
