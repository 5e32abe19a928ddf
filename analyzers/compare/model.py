"""Define the structs of the JSON document `workbench.compare/1`."""

import msgspec

from analyzers.memory import diff
from analyzers.steps.diff.loss_parity import LossParity
from analyzers.steps.diff.measures import MeasureChange
from analyzers.steps.diff.phase_changes import PhaseChange
from analyzers.traces.diff.diff import TraceDiff


class Row(msgspec.Struct, frozen=True):
    """A table row that compares one quantity or setting (`what`) of the runs `a` and `b`, as texts.

    `change` is the relative change and `interval` its 95 % interval. Each is empty if it is not known.
    """

    what: str
    a: str
    b: str
    change: str = ""
    interval: str = ""


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """The measures of one run, summed up over its ranks.

    `step_s` is the duration of a step in seconds, and `phases` has the seconds of each phase of a step: medians over
    the ranks. `tokens_per_s` is the speed of one rank (median over the ranks). `timed_steps` is the number of steps of
    the rank with the fewest steps. `memory_bytes` is the peak memory of the rank with the highest peak. `loss` is the
    last loss of the first rank that logged one. A value that was not recorded is None, 0 or empty.
    """

    step_s: float | None = None
    timed_steps: int = 0
    tokens_per_s: float | None = None
    loss: float | None = None
    memory_bytes: int | None = None
    phases: dict[str, float] = {}


class CompareData(msgspec.Struct, frozen=True, kw_only=True):
    """The field `data` of `workbench.compare/1`: the measures of the runs `a` and `b`, and their differences.

    `rows` is a table of all measures, followed by the settings that differ; `config` has only these settings.
    `contrasts` are the changes of the measures with their confidence intervals. `parity` compares the losses step by
    step, and `phases` the durations of the phases of a step. `memory` compares the live memory at the peaks, and
    `traces` the profiler traces. A field is None or empty if one of the runs does not have the files for it.
    """

    a: Measures
    b: Measures
    rows: list[Row]
    config: list[Row]
    contrasts: list[MeasureChange] = []
    parity: LossParity | None = None
    phases: list[PhaseChange] = []
    memory: diff.Diff | None = None
    traces: TraceDiff | None = None
