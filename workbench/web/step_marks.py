"""Positions of the training steps on the axes of charts; they are computed once per file."""

from functools import lru_cache

import pandas as pd

from analyzers.memory import views as memory
from analyzers.memory.model import Device
from analyzers.run import TIMED, Artefact
from analyzers.steps import views as steps
from analyzers.store import Options
from analyzers.traces import views as traces
from workbench.step_axis import StepMarks
from workbench.web.served_run import ServedRun

# More than the ranks of a snapshot that a page compares, so that a zoom never reads a clock twice.
KEPT = 256


def memory_marks(served: ServedRun, device: Device) -> StepMarks:
    """Return the steps of a device's snapshot: the trace entries at which training steps start and end."""
    return _snapshot_marks(served.snapshot(device.path), served.options, device.device, step_logs(served))


def trace_marks(served: ServedRun, artefact: Artefact) -> StepMarks:
    """Return the steps of a trace: the times in ns at which training steps start and end."""
    return _trace_file_marks(artefact, served.options, step_logs(served))


def step_logs(served: ServedRun) -> tuple[Artefact, ...]:
    """Return the step logs of the run, which have the times of steps; some traces and snapshots mark no steps."""
    return tuple(served.run.of(*TIMED)) if served.rooms.steps else ()


@lru_cache(KEPT)
def _snapshot_marks(artefact: Artefact, options: Options, device: int, logs: tuple[Artefact, ...]) -> StepMarks:
    """Return the steps of a device in a snapshot; the result is cached."""
    return StepMarks.of(memory.clock(artefact, options, device, _logged_steps(logs, options, artefact.rank)))


@lru_cache(KEPT)
def _trace_file_marks(artefact: Artefact, options: Options, logs: tuple[Artefact, ...]) -> StepMarks:
    """Return the steps of a trace file; the result is cached."""
    return StepMarks.of(traces.clock(artefact, options, _logged_steps(logs, options, artefact.rank)))


def _logged_steps(logs: tuple[Artefact, ...], options: Options, rank: int | None) -> pd.DataFrame | None:
    """Return a table of the times at which a rank's steps ran, from the step logs; None without step logs."""
    return steps.clock(logs, options, rank) if logs else None
