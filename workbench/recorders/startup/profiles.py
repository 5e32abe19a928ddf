"""Profile steps of an unchanged training script: a given step, every n-th step, or a step after the signal SIGUSR1."""

import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from torch.profiler import ProfilerAction

from workbench.recorders.files import read_json
from workbench.recorders.own_files import harmless, save_json
from workbench.recorders.signals import is_free, reset_in_children
from workbench.recorders.timing.profiler_traces import TracePlan, TraceRecorder

SIGNAL = signal.SIGUSR1
_LEAD_STEPS = 3
"""The number of steps from the signal to the step to profile, because ranks get the signal in different steps."""
_REQUEST = ".profile_step.json"
_REQUEST_AGE_S = 30.0


@dataclass(frozen=True)
class OneStep(TracePlan):
    """A schedule that traces the single step `step`, after one warm-up step."""

    step: int = 1

    def action(self, step: int) -> ProfilerAction:
        """Return the profiler's action in a step: nothing, warm up, or record and save."""
        if step == self.step:
            return ProfilerAction.RECORD_AND_SAVE
        return ProfilerAction.WARMUP if step == self.step - 1 else ProfilerAction.NONE


class Profiles:
    """Runs the profiler in the steps to trace and in their warm-up steps; in other steps it costs nothing.

    `first` is the number of a single step to trace; `regular` is a schedule of repeated traces. Both are optional.
    """

    def __init__(self, folder: Path, device: str, first: int | None = None, regular: TracePlan | None = None) -> None:
        self._folder, self._device, self._wanted = folder, device, first
        self._regular = regular
        self._recorder = TraceRecorder(plan=regular, device=device) if regular else None
        self._step = 0
        on_main_thread = threading.current_thread() is threading.main_thread()
        self._handler = lambda *_: self.request()
        # A handler of the script, or of its framework, stays: such as that of a Slurm requeue.
        if on_main_thread and is_free(SIGNAL):
            signal.signal(SIGNAL, self._handler)
            reset_in_children(SIGNAL, self._reset_signal)

    def _reset_signal(self) -> None:
        if signal.getsignal(SIGNAL) is self._handler and threading.current_thread() is threading.main_thread():
            signal.signal(SIGNAL, signal.SIG_DFL)

    def abandon(self) -> None:
        """Stop profiling in a forked child, without closing the session of the parent."""
        self._recorder, self._wanted, self._regular = None, None, None

    @property
    def active(self) -> bool:
        """Whether the profiler is running, in a traced step or in a warm-up step."""
        return self._recorder is not None

    @harmless
    def request(self) -> None:
        """Request a trace of a step soon after this one (the handler of SIGUSR1); all ranks trace the same step.

        The first rank that gets the signal chooses the step.
        """
        if self._recorder is None:
            self._wanted = _agreed_step(self._folder, self._step + _LEAD_STEPS)

    def begin(self, step: int) -> bool:
        """Begin step `step`, and return whether it is traced."""
        self._step = step
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


def _agreed_step(folder: Path, step: int) -> int:
    """Return the step to profile that another rank has recently chosen; if none has, choose `step` for all ranks.

    The choice is written to a file in `folder`, which all ranks read.
    """
    path = folder / _REQUEST
    chosen = read_json(path)
    if chosen and time.time() - chosen["time_s"] < _REQUEST_AGE_S and chosen["step"] > step - _LEAD_STEPS:
        return int(chosen["step"])
    save_json(path, {"step": step, "time_s": time.time()})
    return step
