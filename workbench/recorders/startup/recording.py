"""Record an unchanged training script: hangs, steps, memory on CUDA, and profiles on request.

The script does not call the recorders. Instead, hooks in functions of torch call the class `Recording`.
"""

import atexit
import ctypes
import fcntl
import multiprocessing
import os
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from threading import get_ident
from typing import Any

import torch
import torch.distributed as dist
from torch import _C
from torch.profiler import ProfilerAction
from torch.utils.data import dataloader

from workbench.recorders import automatic
from workbench.recorders.attach import Attached, attach
from workbench.recorders.files import (
    RankInfo,
    group_position,
    read_json,
    remove_other,
    require_descriptors,
)
from workbench.recorders.hang.rank_exit import exit_report
from workbench.recorders.memory import cuda_failure
from workbench.recorders.memory.holders import HolderSearch
from workbench.recorders.own_files import harmless, note_failure, save_json
from workbench.recorders.signals import raise_of_script
from workbench.recorders.stand_in_importlib_bootstrap import not_compiled, stand_in
from workbench.recorders.startup.settings import Settings
from workbench.recorders.timing.profiler_traces import TracePlan, TraceRecorder
from workbench.recorders.timing.step_log import StepRecorder

BACKWARD = "bwd"
_OTHERS_STEPS = 100
"""The number of steps of other optimizers after which one of them counts the steps of the training.

That happens if the optimizer that counted them makes no step meanwhile.
"""
_SCALARS = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}
"""{type of a number in memory: the same of C}."""
_SHORT_NS, _SHORT_STEPS = 2_000_000, 10
"""After a step shorter than `_SHORT_NS`, the numbers of collectives are read only at every tenth step."""


class Recording:
    """All recorders of this process, for a script that does not call them.

    A script may have several optimizers. The first optimizer that steps counts the training steps: each of its later
    steps ends one. `of_script` is the object that a script started itself, with `recorders.start`, or None.
    """

    of_script: "Recording | None" = None

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self._steps: StepRecorder | None = None
        self._profiles: Profiles | None = None
        self._attached: Attached | None = None
        self._search = HolderSearch(settings.folder / "memory_snapshot") if settings.find_holders else None
        self._in_step = False
        self._number = 0
        self._open_phases = 0
        self._step_is_over = False
        self._optimizer: Callable[[], object] = lambda: None
        self._others_steps = 0
        self._is_short = False
        self._idle = False
        self._failed = self._is_asked = False
        self._thread = get_ident()  # the one that trains; others may train models of their own
        self._has_refused = False  # starting has failed, and is not tried again at every step

    def start(self) -> None:
        """Start the recorders because the script asks for them, with a process group or without one.

        Without a group, the steps are recorded from now on. If the script may still choose CUDA, that is known at its
        first optimizer step, so recording starts there.
        """
        self._is_asked = True
        if _has_group():
            self.attach()
        elif self._steps is None and not self._idle and (_uses_cuda() or not torch.cuda.is_available()):
            self._start_alone()

    def attach(self) -> None:
        """Start the recorders of hangs and of steps; call it after the process group was created."""
        if Attached.now is not None:
            return
        steps = self._steps or self._start_steps()
        given = self._settings
        timeouts = (given.init_timeout_s or given.timeout_s, given.train_timeout_s or given.timeout_s)
        self._attached = attach(given.folder, timeouts, steps, self._save_memory)
        automatic.register(self.leave_steps_to, self.leave_hangs)

    @not_compiled
    def before_step(self, optimizer: object, *_: object) -> None:
        """Begin the phase `optim` of a step, because `optimizer` is about to step (a hook on all optimizers).

        In a process without a process group, the first call also starts the recording. If the script has created a
        group since it called `recorders.start`, the recorders of hangs start too.
        """
        if torch.compiler.is_dynamo_compiling():  # it would trace our code into the script's graph, and warn
            return
        try:
            if self._attached is None and not self._idle and not self._has_refused:
                self._has_refused = True
                self._start_if_possible()
                self._has_refused = False
            if self._others_steps > _OTHERS_STEPS or self._optimizer() is None:
                # A strong reference would keep the state of an optimizer in memory after the script has dropped it.
                self._optimizer = weakref.ref(optimizer)
                if _C._current_graph_task_id() < 0:  # noqa: SLF001
                    self._thread = get_ident()
            steps = self._steps
            if steps is not None and self._in_step and self._is_of_training():
                steps.begin_phase("optim")
                self._open_phases += 1
        except Exception as error:  # noqa: BLE001  # the job continues
            note_failure(error)

    @not_compiled
    def after_step(self, optimizer: object, *_: object) -> None:
        """End the phase `optim`; if `optimizer` is the one that counts the steps, also end the training step.

        It is a hook on all optimizers.
        """
        if torch.compiler.is_dynamo_compiling():
            return
        try:
            is_first = optimizer is self._optimizer()
            self._others_steps = 0 if is_first else self._others_steps + 1
            if not self._is_of_training():
                return
            self._step_is_over = self._step_is_over or is_first
            # An optimizer that steps within the backward pass ends the step together with that.
            ends = self._step_is_over and self._open_phases <= 1
            steps = self._steps
            if steps is not None and self._open_phases:
                self._open_phases -= 1
                steps.end_phase(step_ends=ends)
            if ends:
                self._end_step()
                self._begin_step()
        except Exception as error:  # noqa: BLE001  # the job continues
            note_failure(error)

    def _is_of_training(self) -> bool:
        """Return whether this thread is the one that trains, or one of torch's own in the middle of a backward pass."""
        return get_ident() == self._thread or _C._current_graph_task_id() >= 0  # noqa: SLF001

    def leave_steps_to(self, recorder: StepRecorder) -> None:
        """Stop recording steps, because the script has started its own step recorder, `recorder`.

        From now on, the hang recorder reads the current step and phase from `recorder`.
        """
        self._idle = True
        if self._steps:
            self._steps.stop()
            self._steps = None
        if self._attached:
            self._attached.follow(recorder)

    def leave_hangs(self) -> None:
        """Stop the automatic hang recorder, because the script starts its own."""
        if self._attached:
            self._attached.close()
            Attached.now = self._attached = None

    def abandon(self) -> None:
        """Drop all recorders in a forked child without closing them, because they belong to the parent process."""
        self._idle, self._steps, self._attached, self._in_step = True, None, None, False
        if self._profiles:
            self._profiles.abandon()
        Attached.now = None
        automatic.forget()

    def failed(self, error: BaseException) -> None:
        """Record an exception that ends the process; do nothing if a hang recorder runs, which records it itself."""
        if os.getpid() != self._pid:
            return
        self._failed = True
        is_recorded = self._steps or "RANK" in os.environ or (self._is_asked and not self._idle)
        if is_recorded and self._attached is None and Attached.now is None:
            self._save_memory(error)
            rank = RankInfo.here().rank
            report = exit_report(error, rank=rank, step=self._number, phase="")
            save_json(self._settings.folder / "dumps" / f"exit_{rank}.json", report)

    def close(self) -> None:
        """Stop the profiler and the step recorder; the step recorder first writes steps that waited for device times.

        A clean end is recorded if no error was recorded and no hang recorder runs. A hang recorder records the end
        itself.
        """
        if os.getpid() != self._pid:
            return
        if self._profiles:
            self._profiles.close()
        steps, self._steps, self._idle = self._steps, None, True
        if steps and (self._failed or self._attached):
            steps.stop()  # the recorder of hangs marks the end
        elif steps:
            steps.close()

    def _start_if_possible(self) -> None:
        if self._is_asked and _has_group():
            self.attach()
        if self._steps is None and not self._idle:
            self._start_alone()

    def _start_alone(self) -> None:
        """Start recording steps in a process without a process group.

        If a run has several such processes, only the first one is recorded.
        """
        if "RANK" not in os.environ and group_position() is None and not self._is_only_one():
            self._idle = True
            return
        self._start_steps()
        automatic.register(self.leave_steps_to, self.leave_hangs)

    def _is_only_one(self) -> bool:
        path = self._settings.folder / "steps" / ".only_process"
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_other(path)
        # It is only locked, until the process ends; nothing is written.
        self._lock = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600), "w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise_of_script(error)
            return False
        return True

    def _start_steps(self) -> StepRecorder:
        require_descriptors()
        asked = self._settings
        device = "cuda" if _uses_cuda() else "cpu"
        self._steps = StepRecorder(asked.folder, device=device, reset_peaks=False)
        traces = asked.folder / asked.traces
        schedule = (asked.profiler_warmup, asked.profiler_active)
        regular = TracePlan(traces, asked.profile_freq, *schedule) if asked.profile_freq else None
        self._profiles = Profiles(traces, asked.folder, device, asked.profile_step, regular)
        if device == "cuda":
            cuda_failure.record_history()
        self._time_phases()
        if multiprocessing.parent_process() is None:
            atexit.register(self.close)
        else:
            # After the recorder of hangs, whose priority is 100, as it is with `atexit`.
            Finalize(None, self.close, exitpriority=50)
        self._begin_step()
        return self._steps

    def _time_phases(self) -> None:
        """Wrap the data loader and the backward pass to measure them as phases; most scripts have both."""
        iterator = dataloader._BaseDataLoaderIter  # noqa: SLF001
        iterator.__next__ = self._timed("data_wait", iterator.__next__)  # type: ignore[method-assign]
        # Below `torch.autograd.backward`, which finds its arguments, and which scripts compare and replace.
        module: Any = torch.autograd
        module._engine_run_backward = self._timed(BACKWARD, module._engine_run_backward)  # noqa: SLF001

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        is_backward = name == BACKWARD

        def begin(_args: Sequence[Any], kwargs: dict[str, Any]) -> StepRecorder | None:
            # `torch.autograd.grad` runs the engine, too, and accumulates no gradients.
            steps = self._steps
            if steps is None or not (self._in_step and self._is_of_training() and kwargs.get("accumulate_grad", True)):
                return None
            try:
                steps.begin_phase(name)
                self._open_phases += 1
            except Exception as error:  # noqa: BLE001  # the job continues
                note_failure(error)
            return steps

        def end(steps: StepRecorder | None, args: Sequence[Any]) -> None:
            if steps is None:
                return
            try:
                if steps is self._steps and self._open_phases:
                    self._open_phases -= 1
                    steps.end_phase()
                if is_backward and len(args[0]) == 1:
                    self._note_loss(args[0][0])
            except Exception as error:  # noqa: BLE001
                note_failure(error)

        return stand_in(function, not_compiled(begin), not_compiled(end))

    def _note_loss(self, root: object) -> None:
        """Store the value of `root`, the tensor whose `backward` is called, as the loss of the step in the step log.

        Only a single number on the CPU is read: reading it from a device would wait for all queued work.
        """
        # A mode of the script would see our calls.
        if not self._in_step or _C._len_torch_function_stack():  # noqa: SLF001
            return
        # And so would a class of the script; of a DTensor, this rank's part is one of torch's own.
        value = root if type(root) is torch.Tensor else getattr(root, "_local_tensor", None)
        if type(value) is not torch.Tensor or value.numel() != 1 or not value.is_cpu:
            return
        scalar = _SCALARS.get(value.dtype)
        if scalar is not None and not value.is_neg() and (address := value.data_ptr()):
            # `item` is an operation of torch, which takes more than all else in a step that the recorders do.
            self._line.local_loss = scalar.from_address(address).value
        elif value.is_floating_point() and not self._operations_are_seen():
            self._line.local_loss = value.item()

    def _operations_are_seen(self) -> bool:
        """Return whether a mode or profiler of the script would see operations of ours."""
        if _C._len_torch_dispatch_stack():  # noqa: SLF001
            return True
        return _C._autograd._profiler_enabled() and not (self._profiles and self._profiles.active)  # noqa: SLF001

    def _begin_step(self) -> None:
        if self._steps is None or self._profiles is None:
            return
        self._number += 1
        self._step_is_over = False
        self._line = self._steps.begin_step(self._number)
        self._in_step = True
        if self._number == 1:
            self._line.tag("first")
        if self._profiles.begin(self._number):
            self._line.tag("profile")

    def _end_step(self) -> None:
        if self._steps is None or self._profiles is None:
            return
        if self._profiles.active:
            with self._steps.phase("profiler"):
                self._profiles.end()
        # The numbers of ranks are compared at the same step, so short steps have them at the same steps, too.
        if self._attached and (self._number % _SHORT_STEPS == 0 or not self._is_short):
            self._line.seqs = self._attached.flight.sequences()
        self._in_step = False
        self._steps.end_step()
        if self._search is not None:
            self._search.step_ended(self._number)
        self._is_short = self._line.dur_ns < _SHORT_NS

    def _save_memory(self, error: BaseException) -> None:
        cuda_failure.save(self._settings.folder / "memory_snapshot", error, finished_step=max(0, self._number - 1))


def _uses_cuda() -> bool:
    """Return whether this process uses CUDA: it has a CUDA context, or its process group uses NCCL."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return True
    return _has_group() and "nccl" in dist.get_backend()


def _has_group() -> bool:
    return dist.is_available() and dist.is_initialized()


# Profile steps of an unchanged training script: a given step, every n-th step, or a step when somebody asks for it.
#
# Who wants a profile of a running job touches the file `profile_now` in its folder. No signal asks for it: schedulers
# and frameworks use SIGUSR1 and SIGUSR2 for their own messages.

REQUEST = "profile_now"
_LOOK_S = 1.0
"""The seconds between two looks for a request."""
_LEAD_STEPS = 3
"""The number of steps from a request to the traced step, beside those of two looks: ranks look at different times."""
_AGREED = ".profile_step.json"
_AGREED_AGE_S = 30.0


@dataclass(frozen=True)
class OneStep(TracePlan):
    """A schedule that traces the single step `step`, after one warm-up step."""

    step: int = 1

    def action(self, step: int) -> ProfilerAction:
        if step == self.step:
            return ProfilerAction.RECORD_AND_SAVE
        return ProfilerAction.WARMUP if step == self.step - 1 else ProfilerAction.NONE


class Profiles:
    """Runs the profiler in the steps to trace and in their warm-up steps; in other steps it costs nothing.

    `folder` is for the traces, and `run` is the run folder. `first` is the number of a single step to trace; `regular`
    is a schedule of repeated traces. Both are optional.
    """

    def __init__(
        self, folder: Path, run: Path, device: str, first: int | None = None, regular: TracePlan | None = None
    ) -> None:
        self._folder, self._device, self._wanted = folder, device, first
        self._request = run / REQUEST
        # A request that was there before is of an earlier run.
        self._seen, self._next_look, self._step_of_look = _time_of(self._request), time.monotonic() + _LOOK_S, 0
        self._regular = regular
        self._recorder = TraceRecorder(plan=regular, device=device) if regular else None
        self._step = 0

    def abandon(self) -> None:
        """Stop profiling in a forked child, without closing the session of the parent."""
        self._recorder, self._wanted, self._regular = None, None, None

    @property
    def active(self) -> bool:
        """Whether the profiler is running, in a traced step or in a warm-up step."""
        return self._recorder is not None

    @harmless
    def _look(self, step: int) -> None:
        """Look for a request, and agree with the other ranks on the step to trace: the first that sees it chooses."""
        self._next_look = time.monotonic() + _LOOK_S
        passed, self._step_of_look = step - self._step_of_look, step
        asked = _time_of(self._request)
        if asked != self._seen and self._recorder is None:
            self._seen = asked
            self._wanted = _agreed_step(self._folder, step, _LEAD_STEPS + 2 * passed)

    def begin(self, step: int) -> bool:
        """Begin step `step`, and return whether it is traced."""
        self._step = step
        if time.monotonic() >= self._next_look:
            self._look(step)
        # The profiler starts one step early, because it needs a step to warm up.
        if self._recorder is None and self._wanted in (step, step + 1):
            plan = OneStep(self._folder, 2, 1, 1, step=self._wanted)
            self._recorder = TraceRecorder(plan=plan, device=self._device)
        if self._recorder is None:
            return False
        self._recorder.begin(step)
        return self._recorder.plan.is_traced(step)

    def end(self) -> None:
        """End the current step, and write the trace if it is complete."""
        if self._recorder is None:
            return
        self._recorder.end()
        if self._regular is None and self._step == self._wanted:
            self.close()

    def close(self) -> None:
        """Stop the profiler; an incomplete trace is discarded."""
        if self._recorder:
            self._recorder.close()
        self._recorder, self._wanted = None, None


def _time_of(path: Path) -> int:
    """Return the time of the last change of a file in ns; 0 if there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError as error:
        raise_of_script(error)
        return 0


def _agreed_step(folder: Path, step: int, lead: int) -> int:
    """Return the step to profile that another rank has recently chosen; if none has, choose one for all ranks.

    `step` is the current step, and the chosen one is `lead` steps later.
    The choice is written to a file in `folder`, which all ranks read.
    """
    path = folder / _AGREED
    chosen = read_json(path)
    if chosen and time.time() - chosen["time_s"] < _AGREED_AGE_S and chosen["step"] > step:
        return int(chosen["step"])
    save_json(path, {"step": step + lead, "time_s": time.time()})
    return step + lead
