"""Where the steps of training lie on the axes of the pages, asked once for each file."""

from functools import lru_cache
from typing import Any

import pandas as pd

from analyzers.memory import views as memory
from analyzers.run import TIMED, Artefact
from analyzers.steps import views as steps
from analyzers.store import Options
from analyzers.traces import views as traces
from workbench.web.served_run import ServedRun
from workbench.web.step_window import StepMarks

KEPT = 256


def memory_marks(served: ServedRun, device: Any) -> StepMarks:
    """Over the entries of a device's trace."""
    artefact = served.snapshot(device.path)
    assert artefact is not None, "a device of the report comes from a file of the run"
    return of_memory(artefact, served.options, device.device, logs_of(served))


def trace_marks(served: ServedRun, artefact: Artefact) -> StepMarks:
    """Over the nanoseconds of a trace."""
    return of_trace(artefact, served.options, logs_of(served))


def logs_of(served: ServedRun) -> tuple[Artefact, ...]:
    """The logs that tell when steps were, for files without marks of their own."""
    return tuple(served.run.of(*TIMED)) if "steps" in served.parts else ()


@lru_cache(KEPT)
def of_memory(artefact: Artefact, options: Options, device: int, logs: tuple[Artefact, ...]) -> StepMarks:
    return StepMarks.of(memory.clock(artefact, options, device, logged(logs, options, artefact.rank)))


@lru_cache(KEPT)
def of_trace(artefact: Artefact, options: Options, logs: tuple[Artefact, ...]) -> StepMarks:
    return StepMarks.of(traces.clock(artefact, options, logged(logs, options, artefact.rank)))


def logged(logs: tuple[Artefact, ...], options: Options, rank: int | None) -> pd.DataFrame | None:
    return steps.clock(logs, options, rank) if logs else None
