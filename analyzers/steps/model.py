"""Define the structs of the JSON document `workbench.steps/1`, and the values of its enumerations.

Field names are the names in the JSON; if Python uses a clearer name, `name=` has the name in the document.
"""

from enum import StrEnum

import msgspec

from analyzers.steps.columns.quantities import NumberedBy, Quantity


class Cause(StrEnum):
    """The reason why steps lose time: the kind of work in which a late rank, or all ranks at once, took longer."""

    COMPUTE = "compute"
    DATA = "data"
    GC = "gc"
    CHECKPOINT = "checkpoint"
    EVALUATION = "eval"
    LOGGING = "logging"
    UNRECORDED = "unrecorded"
    """The script's own code, outside of the phases that the log records."""
    MIXED = "mixed"
    """No single cause explains most of the lost time."""


class Pattern(StrEnum):
    """The pattern of a straggler's lateness: in nearly all steps, some steps, in turns with others, or by machine."""

    PERSISTENT = "persistent"
    """The rank is late in nearly all steps since the first late step."""
    RECURRING = "recurring"
    """The rank is late in some steps, without a step from which on it is always late."""
    ROTATING = "rotating"
    """The rank is late in turns with other ranks."""
    HOST = "host"
    """The rank is late together with all other ranks of its machine."""


class ChangeKind(StrEnum):
    """How the step time changed: at once at one step (STEP), or steadily from that step to the end (DRIFT)."""

    STEP = "step"
    DRIFT = "drift"


class EventKind(StrEnum):
    """The kind of an event in the loss or the gradient norm."""

    LOSS_SPIKE = "loss_spike"
    LOSS_RISE = "loss_rise"
    GRAD_NORM_JUMP = "grad_norm_jump"
    PLATEAU = "plateau"


class Problem(StrEnum):
    """The kind of a verdict on step logs, the most important first.

    A verdict reports the first kind that was found. For example, a NaN in the loss comes before a slow rank, because
    the speed of a run with a broken loss does not matter.
    """

    NONFINITE_LOSS = "nonfinite_loss"
    COLLECTIVE_COUNT = "collective_count"
    STRAGGLER = "straggler"
    MEMORY_GROWTH = "memory_growth"
    GLOBAL_STALL = "global_stall"
    SLOWDOWN = "slowdown"
    LOSS_RISE = "loss_rise"
    LOSS_SPIKE = "loss_spike"
    LONG_STEP = "long_step"
    RESTART_TIME = "restart_time"
    CHECKPOINT_TIME = "checkpoint_time"
    DATA_TIME = "data_time"

    @property
    def finding_id(self) -> str:
        """The id of the finding on this problem, such as `steps.straggler`."""
        return f"steps.{self}"


class MappedColumn(msgspec.Struct, frozen=True, kw_only=True):
    """One column of a log that another trainer wrote, and the quantity that it was read as.

    `quantity` is null if the meaning of the column is unknown; the column is kept nevertheless. `unit` is the unit of
    the values in the file, `unknown` if neither the column's name nor the trainer shows it. `chosen` is true if the
    user named this column for the quantity. `last` is the last value of the column.
    """

    name: str
    quantity: Quantity | None = None
    unit: str = ""
    chosen: bool = False
    last: float | None = None


class MappedLog(msgspec.Struct, frozen=True, kw_only=True):
    """How a log of another trainer was read.

    `duplicates` is the number of rows that were dropped because a later row has the same step. `restarts` is how often
    the step number went back. `dropped` is the number of rows without a step number. `texts` has the names of columns
    without numbers. `omitted` counts the values that were dropped because the log has more columns than are read
    (`raw_table.COLUMNS_AT_MOST`).
    """

    path: str
    numbered_by: NumberedBy
    columns: list[MappedColumn]
    timed_by_clock: bool = False
    duplicates: int = 0
    restarts: int = 0
    dropped: int = 0
    texts: list[str] = []
    omitted: int = 0


class RankSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The summary of one rank: medians over its plain steps (those that only trained), in seconds and bytes.

    `mad_s` is the median absolute deviation of its step times. `phases`, `cpu` and `device` have the seconds of each
    phase by the wall clock, in processor time and by the device's clock. `table.NOT_PLAIN` lists the tags of steps that
    are not plain.
    """

    rank: int
    steps: int
    first_step: int
    last_step: int
    median_step_s: float | None
    mad_s: float | None
    p95_step_s: float | None
    phases: dict[str, float]
    cpu: dict[str, float]
    device: dict[str, float]
    tokens_per_s: float | None
    peak_memory_bytes: int
    last_loss: float | None


class TaggedSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of all ranks that share a tag, such as `checkpoint`: how many, and their median duration in seconds."""

    steps: int
    median_step_s: float | None


class LateStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step in which a rank was late, and by how many seconds; `step_s` is the duration of the step."""

    step: int
    lateness_s: float
    step_s: float


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that makes the others wait.

    `lateness_s` is its mean lateness over the steps in which it is late; `recurrence` is the share of these steps.
    `lost_s` is the time that the rank costs the job per step, averaged over all steps; `share` is the total cost as a
    share of the time of all steps. `latest` are the steps in which it is latest, in order of steps. `late_step_s` is
    the median duration of the steps in which it is late, `other_step_s` of the other steps (None: there are none).
    """

    rank: int
    lateness_s: float
    recurrence: float
    cause: Cause
    first_step: int
    last_step: int
    steps_late: int
    lost_s: float
    share: float
    pattern: Pattern
    latest: list[LateStep] = []
    late_step_s: float = 0.0
    other_step_s: float | None = None


class GlobalStall(msgspec.Struct, frozen=True, kw_only=True):
    """Steps in which all ranks lost time for one cause.

    `lost_s` is the time lost in these steps, in seconds, and `share` the same as a share of the time of all steps.
    """

    cause: Cause
    steps: int
    first_step: int
    last_step: int
    lost_s: float
    share: float


class LongStep(msgspec.Struct, frozen=True, kw_only=True):
    """A single step that took far longer than the steps around it, with times in seconds.

    `ranks` are the ranks for which the others waited, or all ranks if this is not known. `phase` is the phase with most
    of the extra time, empty if no phase explains it. `share` is the extra time as a share of the time of all steps.
    """

    step: int
    duration_s: float
    usual_s: float
    ranks: list[int]
    phase: str
    share: float


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the typical step time at `step`, from `before_s` to `after_s` seconds.

    `phases` is {phase: by how many seconds it changed}.
    """

    kind: ChangeKind
    step: int
    before_s: float
    after_s: float
    phases: dict[str, float]


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the wall time of a run, as the mean over its ranks.

    `parts` is {name of a part: ns}, such as `data`, `checkpoint`, `stall`, `restart`, `redone` (steps whose work was
    lost by a restart) and `productive` (the time of steps that is in no other part). The parts add up to `wall_ns`, the
    time from the start of the first process to the end of the last step. The field `productive` is the productive part
    as a share of `wall_ns` (0 to 1).
    """

    started_ns: int
    wall_ns: int
    parts: dict[str, int]
    productive: float


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event in the loss or the gradient norm that begins at `step`.

    `before` is the loss (or gradient norm) before the event, `value` the one reached in the event, and `until` the
    first step after its end (null: it did not end).
    """

    kind: EventKind
    step: int
    value: float | None = None
    before: float | None = None
    until: int | None = None


class StepsData(msgspec.Struct, frozen=True, kw_only=True):
    """The `data` of a report on step logs, with one entry per rank, straggler, stall, change and event."""

    world_size: int
    ranks: list[RankSteps]
    stragglers: list[Straggler]
    tagged: dict[str, TaggedSteps] = msgspec.field(name="apart", default_factory=dict)
    stalls: list[GlobalStall] = []
    changes: list[Change] = []
    events: list[Event] = []
    goodput: Goodput | None = None
    first_nonfinite_step: int | None = None
    long_steps: list[LongStep] | msgspec.UnsetType = msgspec.UNSET
    logs: list[MappedLog] | msgspec.UnsetType = msgspec.UNSET
