"""Define the structs of the JSON document `workbench.compare/1`."""

import msgspec

from analyzers.memory import diff
from analyzers.steps.diff.loss_parity import LossParity
from analyzers.steps.diff.measures import MeasureChange
from analyzers.steps.diff.phase_changes import PhaseChange
from analyzers.traces.diff.diff import TraceDiff


class Row(msgspec.Struct, frozen=True):
    """A table row that compares a quantity or setting of both runs, as texts.

    `change` (the relative change) and `interval` (its 95 % interval) are empty if they are not known.
    """

    what: str
    a: str
    b: str
    change: str = ""
    interval: str = ""


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """The measures of one run: for most of them the median over its ranks.

    Memory is the memory of the rank with the highest use, `timed_steps` the number of the rank with the fewest, and the
    loss is from one rank. Times are in seconds, memory is in bytes, and `tokens_per_s` is of one rank. A value that was
    not recorded is None, 0 or {}.
    """

    step_s: float | None = None
    timed_steps: int = 0
    tokens_per_s: float | None = None
    loss: float | None = None
    memory_bytes: int | None = None
    phases: dict[str, float] = {}


class CompareData(msgspec.Struct, frozen=True, kw_only=True):
    """The measures of both runs and their differences; fields are None or empty if a run does not have the files."""

    a: Measures
    b: Measures
    rows: list[Row]
    config: list[Row]
    contrasts: list[MeasureChange] = []
    parity: LossParity | None = None
    phases: list[PhaseChange] = []
    memory: diff.Diff | None = None
    traces: TraceDiff | None = None
