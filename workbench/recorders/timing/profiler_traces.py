"""Write profiler traces every `freq` steps, in torchtitan's schedule and folder layout.

In any training script:

    traces = TraceRecorder("outputs/profile_traces", freq=10)
    with traces.step(n):  ...
"""

import errno
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import _C
from torch.profiler import ProfilerAction, ProfilerActivity, profile, schedule

from workbench.recorders.files import RankInfo, make_folder_of
from workbench.recorders.own_files import note_failure, remove_file
from workbench.recorders.quiet import profiler_messages_hidden

_TRACE_END = 64
"""The bytes at the end of a trace that are read to see whether it is complete."""


def activities(device: str) -> list[ProfilerActivity]:
    """Return the profiler activities (CPU, CUDA) to record on this type of device."""
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]


def profiler_runs() -> bool:
    """Return whether a session of PyTorch's profiler is active in this process; there can be only one."""
    return bool(_C._autograd._profiler_enabled())  # noqa: SLF001


def export(profiler: profile, path: Path) -> None:
    """Write the profiler's trace to `path`, completely or not at all; a failure is noted."""
    draft = path.with_name(f".{path.name}")
    try:
        make_folder_of(path)
        # What already has this name may be a link, or have another name, too.
        remove_file(draft)
        profiler.export_chrome_trace(str(draft))
        _require_whole(draft)
        draft.replace(path)
    except (OSError, RuntimeError) as error:
        note_failure(error)
        remove_file(draft)


def _require_whole(draft: Path) -> None:
    """Raise OSError if a trace has no end; PyTorch writes it in C++, and does not say that the disk is full."""
    with draft.open("rb") as file:
        file.seek(-min(_TRACE_END, draft.stat().st_size), os.SEEK_END)
        if not file.read().rstrip().endswith(b"}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(draft))


@dataclass(frozen=True)
class TracePlan:
    """The schedule of a profiler: of every `freq` steps, the last `active_steps` are traced, after `warmup` steps.

    A trace contains `active_steps` steps, and is written below `folder`.
    """

    folder: Path
    freq: int
    warmup: int
    active_steps: int

    def __post_init__(self) -> None:
        if self.freq < self.warmup + self.active_steps:
            raise ValueError(f"profile_freq {self.freq} is below warmup {self.warmup} + active {self.active_steps}")

    def action(self, step: int) -> ProfilerAction:
        """Return the profiler's action in a step: nothing, warm up, record, or record and save. Steps count from 1."""
        wait = self.freq - self.warmup - self.active_steps
        plan: Callable[[int], ProfilerAction] = schedule(wait=wait, warmup=self.warmup, active=self.active_steps)
        return plan(max(0, step - 1))

    def is_traced(self, step: int) -> bool:
        return self.action(step) in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)

    def path(self, step: int) -> Path:
        return self.folder / f"iteration_{step}" / f"rank{RankInfo.here().rank}_trace.json"


class TraceRecorder:
    """Writes profiler traces of some steps to `folder`/iteration_N/rankR_trace.json; N is the last step in the trace.

    In a trace, the span `ProfilerStep#n` is step n. If `plan` is given, it replaces `folder`, `freq`, `warmup` and
    `active`.
    """

    def __init__(
        self,
        folder: str | Path = "profile_traces",
        *,
        freq: int = 10,
        warmup: int = 3,
        active: int = 1,
        device: str = "cpu",
        plan: TracePlan | None = None,
    ) -> None:
        self.plan = plan or TracePlan(Path(folder), freq, warmup, active)
        self._device = device
        self._profiler: profile | None = None

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Record a training step inside this context, if it is one of the steps to trace."""
        self.begin(step)
        yield
        self.end()

    def begin(self, step: int) -> None:
        """Begin step `step`; the first call also starts the profiler, which records the steps of its schedule."""
        if self._profiler is None and not profiler_runs():
            self._profiler = self._start(step)

    def end(self) -> None:
        """End the step in the profiler, and write the trace if it is complete."""
        if self._profiler:
            with warnings.catch_warnings(), profiler_messages_hidden():
                # Each cycle is saved before the next one begins, so nothing is lost.
                warnings.filterwarnings("ignore", "Warning: Profiler clears events", UserWarning)
                self._profiler.step()

    def close(self) -> None:
        """Stop the profiler; an incomplete trace is discarded."""
        if self._profiler:
            self._profiler.on_trace_ready = None
            with profiler_messages_hidden():
                self._profiler.stop()
            self._profiler = None

    def _start(self, step: int) -> profile:
        profiler = profile(
            activities=activities(self._device),
            schedule=self.plan.action,
            on_trace_ready=self._save,
            record_shapes=True,
        )
        # The profiler counts from 0, so that `ProfilerStep#n` would name another step than the step log.
        profiler.step_num = step
        profiler.current_action = self.plan.action(step)  # type: ignore[assignment]
        with profiler_messages_hidden():
            profiler.start()
        return profiler

    def _save(self, profiler: profile) -> None:
        export(profiler, self.plan.path(profiler.step_num - 1))
