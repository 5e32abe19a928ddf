"""Profile steps of an unchanged training script: a given step, every n-th step, or a step when somebody asks for it.

Who wants a profile of a running job touches the file `profile_now` in its folder. No signal asks for it: schedulers and
frameworks use SIGUSR1 and SIGUSR2 for their own messages.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from torch.profiler import ProfilerAction

from workbench.recorders.files import read_json
from workbench.recorders.own_files import harmless, save_json
from workbench.recorders.signals import raise_of_script
from workbench.recorders.timing.profiler_traces import TracePlan, TraceRecorder

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
