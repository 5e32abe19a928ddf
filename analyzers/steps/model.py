"""Define the structs of the JSON document `workbench.steps/1`, and the values of its enumerations.

Field names are the names in the JSON; if Python uses a clearer name, `name=` has the name in the document.
"""

from enum import StrEnum

import msgspec

from analyzers.steps.columns import NumberedBy, Quantity


class Cause(StrEnum):
    """The reason why steps lose time: the kind of work in which a late rank, or all ranks at once, took longer.

    `gc` is Python's garbage collection. `unrecorded` is code of the script outside of the phases that the log records.
    `mixed`: no single cause explains most of the lost time.
    """

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
    """The pattern in which a straggler is late.

    `persistent`: in nearly all steps since the first late step. `recurring`: in some steps, without a step from which
    on it is always late. `rotating`: in turns with other ranks. `host`: together with all other ranks of its machine.
    """

    PERSISTENT = "persistent"
    """The rank is late in nearly all steps since the first late step."""
    RECURRING = "recurring"
    """The rank is late in some steps, without a step from which on it is always late."""
    ROTATING = "rotating"
    """The rank is late in turns with other ranks."""
    HOST = "host"
    """The rank is late together with all other ranks of its machine."""


class ChangeKind(StrEnum):
    """The way in which the step time changed: at once at one step (`step`), or steadily until the end (`drift`)."""

    STEP = "step"
    DRIFT = "drift"


class EventKind(StrEnum):
    """The kind of an event in the loss or the gradient norm.

    `loss_spike`: the loss is far higher for a short time. `loss_rise`: the loss rises and stays high. `plateau`: the
    loss stops falling. `grad_norm_jump`: the gradient norm is far larger than before.
    """

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
        return f"steps.{self}"


class MappedColumn(msgspec.Struct, frozen=True, kw_only=True):
    """One column of a log that another trainer wrote, and the quantity that it was read as.

    `quantity` is None if the meaning of the column is unknown; its values are kept nevertheless. `unit` is the unit of
    the values in the file: empty if they need none, and `unknown` if neither the column's name nor the trainer shows
    it. `chosen` is true if the user named this column for the quantity. `last` is the last value of the column (None:
    none).
    """

    name: str
    quantity: Quantity | None = None
    unit: str = ""
    chosen: bool = False
    last: float | None = None


class MappedLog(msgspec.Struct, frozen=True, kw_only=True):
    """A log that another trainer wrote, and how it was read.

    `numbered_by` is where the step numbers come from, and `columns` are the columns with numbers. `texts` has the names
    of columns without numbers. `timed_by_clock` is true if the step times were computed from the clock times of the
    rows, because no column has them.

    `duplicates` is the number of rows that were dropped because a later row has the same step, and `dropped` the number
    of rows without a step number. `restarts` is how often the step number went back. `omitted` is the number of values
    that were not read because the log has more than 512 columns.
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
    """The summary of one rank's steps.

    `steps` is the number of recorded steps, from `first_step` to `last_step`. Times are in seconds, and are those of
    plain steps: steps that did nothing besides training, so not the first step or one with a checkpoint
    (`table.NOT_PLAIN` has the tags of the others). `median_step_s`, `mad_s` and `p95_step_s` are the median, the median
    absolute deviation and the 95th percentile of the step time; each is None if there is no plain step. `phases`, `cpu`
    and `device` have the median of each phase, measured by the wall clock, in processor time, and by the device's
    clock. `tokens_per_s` is the speed of the rank (None: not recorded). `last_loss` is its last loss (None: not logged,
    or not finite).
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
    """The steps of all ranks that have the same tag, such as `checkpoint`.

    `steps` is their number, and `median_step_s` their median duration in seconds (None: unknown).
    """

    steps: int
    median_step_s: float | None


class LateStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step in which a rank was late.

    `lateness_s` is by how many seconds it was late, and `step_s` is the duration of the step in seconds, on
    the rank that took longest.
    """

    step: int
    lateness_s: float
    step_s: float


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that is late, so that the other ranks wait for it; times are in seconds.

    `cause` is the kind of work that makes it late, and `pattern` is how its lateness is distributed over the steps. It
    was late in `steps_late` steps, from `first_step` to `last_step`; `recurrence` is their share of all steps.
    `lateness_s` is its mean lateness in these steps. `lost_s` is the time that it costs the job per step, as a mean
    over all steps, and `share` is this cost as a share of the time of all steps (0 to 1).

    `latest` are the steps in which it was latest, in the order of steps. `late_step_s` is the median duration of the
    steps in which it was late, and `other_step_s` that of the other steps (None: there are none).
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

    `steps` is their number, from `first_step` to `last_step`. `lost_s` is the time lost in them, in seconds, and
    `share` is the same as a share of the time of all steps (0 to 1).
    """

    cause: Cause
    steps: int
    first_step: int
    last_step: int
    lost_s: float
    share: float


class LongStep(msgspec.Struct, frozen=True, kw_only=True):
    """A single step that took far longer than the steps around it.

    `duration_s` is its duration, and `usual_s` the usual one of the steps around it, in seconds. `ranks` are the ranks
    for which the others waited, or all ranks if this is not known. `phase` is the phase with most of the extra time
    (empty: no phase explains it). `share` is the extra time as a share of the time of all steps (0 to 1).
    """

    step: int
    duration_s: float
    usual_s: float
    ranks: list[int]
    phase: str
    share: float


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the typical step time at step `step`.

    `before_s` and `after_s` are the step times before and after it, in seconds. `phases` maps each phase to the number
    of seconds by which it changed.
    """

    kind: ChangeKind
    step: int
    before_s: float
    after_s: float
    phases: dict[str, float]


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """The division of a run's wall time into productive and lost time, as the mean over its ranks.

    `wall_ns` is the time in ns from the start of the first process, at `started_ns` (Unix time in ns), to the end of
    the last step. `parts` divides it into named parts, in ns, such as `data`, `checkpoint`, `stall`, `restart`,
    `redone` (steps whose work was lost by a restart) and `productive` (the time of steps that is in no other part). The
    field `productive` is that last part as a share of `wall_ns`, from 0 to 1.
    """

    started_ns: int
    wall_ns: int
    parts: dict[str, int]
    productive: float


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event in the loss or the gradient norm that begins at step `step`.

    `before` is the loss (or gradient norm) before the event, and `value` the one that it reached; each is None if it is
    not finite or not known. `until` is the first step after the event (None: it did not end).
    """

    kind: EventKind
    step: int
    value: float | None = None
    before: float | None = None
    until: int | None = None


class StepsData(msgspec.Struct, frozen=True, kw_only=True):
    """The field `data` of the JSON document `workbench.steps/1`: the results about the steps of a run.

    `ranks` has a summary for each of the `world_size` ranks that has a log. `stragglers` are ranks that are often late,
    and `stalls` are times that all ranks lost. `changes` are changes of the step time, and `events` are events in the
    loss or the gradient norm. `tagged` (`apart` in JSON) has, by tag, the steps that did more than train. `goodput` is
    None if the logs have no start times of steps. `first_nonfinite_step` is the first step whose loss is NaN or
    infinite (None: there is none). `long_steps` has single steps that took far longer than others, and `logs` says how
    the logs of other trainers were read; each is unset if there is none.
    """

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
