"""The data of the reports that the trainer makes without training: `workbench.estimate/1` and `workbench.plan/1`."""

import msgspec


class RankMemory(msgspec.Struct, frozen=True):
    """The estimated peak memory of `count` ranks that all need the same memory; `first_rank` is the first of them.

    All sizes are in bytes. `peak_bytes` is the highest memory in a step. `categories` has the bytes of each category of
    memory at this peak. `modules` divides the same bytes by module, as {module: {category: bytes}}. Equal layers share
    one name, such as `layers.*.attention`; memory that belongs to no module has a name in parentheses.

    A window is a part of the step, such as the forward pass of the first layer. `windows` has the peak of each window,
    and `peak_window` is the window with the peak of the step. `peak_line` is the line of the script that runs at the
    peak; it is empty if the estimate is for a configuration of the trainer.
    """

    first_rank: int
    count: int
    peak_bytes: int
    peak_window: str
    categories: dict[str, int]
    windows: dict[str, int]
    peak_line: str = ""
    modules: dict[str, dict[str, int]] = {}


class Alternative(msgspec.Struct, frozen=True):
    """A setting that may need less memory, such as another parallelism or batch size.

    `setting` has the flags of the trainer, and `peak_bytes` is the highest peak memory of any rank with them, in bytes.
    """

    setting: str
    peak_bytes: int


class TrainerEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON that `python -m trainer.estimate` prints: the estimated memory of a training job.

    `world_size` is the number of ranks, and `mesh` maps each mesh dimension to its degree. `parameters` is the number
    of the model's parameters, and `layers` the number of its layers. `assumptions` are sentences on how a real run may
    differ. `ranks` has the memory of each group of ranks that need the same memory. For a script, `device` is the
    device whose memory is counted, and `steps` is the number of steps that were run on tensors without values; for a
    configuration they are empty and 0.
    """

    world_size: int
    mesh: dict[str, int]
    model: str
    parameters: int
    layers: int
    assumptions: list[str]
    ranks: list[RankMemory]
    device: str = ""
    steps: int = 0

    @property
    def peak_bytes(self) -> int:
        """The highest peak memory of any rank, in bytes."""
        return max(rank.peak_bytes for rank in self.ranks)


class Refusal(msgspec.Struct, frozen=True):
    """Why the memory of a script cannot be estimated, and what to do instead."""

    error: str
    hint: str


class EstimateData(TrainerEstimate, frozen=True, kw_only=True):
    """The field `data` of `workbench.estimate/1`: the estimated memory of a training job, compared with a limit.

    `world_size` is the number of ranks, and `mesh` maps each mesh dimension to its degree. `parameters` is the number
    of the model's parameters, and `layers` the number of its layers. `assumptions` are sentences on how a real run may
    differ. `ranks` has the memory of each group of ranks that need the same memory. For a script, `device` is the
    device whose memory is counted, and `steps` is the number of steps that were run on tensors without values.

    `limit_bytes` is the memory of a device (None: the user gave no limit). If the peak exceeds it or comes near it,
    `options` has settings that may need less memory, the one with the lowest peak first.
    """

    limit_bytes: int | None
    options: list[Alternative]


class PlannedSettings(msgspec.Struct, frozen=True):
    """Settings that `workbench plan` proposes, with the memory and the speed to expect of them.

    `settings` maps each key of the configuration to its value. `peak_bytes` is the highest peak memory of a rank, in
    bytes; it was measured in a rehearsal, which is a step on tensors without values. A cost model estimates the other
    numbers: `step_s` is the duration of a step, and `tokens_per_s` the speed of the whole job with its
    `tokens_per_step`. `time` divides the step into parts, such as `compute`, in seconds.

    `rank` is the position of the plan by speed: 1 more than the number of plans that are surely faster. The cost model
    cannot tell which of two plans with the same rank is faster. `rank` is None if the plan was not compared with
    others.
    """

    settings: dict[str, bool | int | str]
    peak_bytes: int
    step_s: float
    tokens_per_s: float
    tokens_per_step: int
    time: dict[str, float]
    rank: int | None = None


class PlanData(msgspec.Struct, frozen=True):
    """The field `data` of `workbench.plan/1`: settings with which a training job fits into memory.

    The job has `world_size` ranks on devices of the type `device`, with `limit_bytes` of memory each, of which the
    fraction `margin` must stay free. `parameters` is the number of the model's parameters. `plans` are the settings
    that fit, the fastest first. `next_larger` is the first plan with the next larger batch, which may not fit (None:
    there is none). If the speeds of two plans differ by less than the fraction `speed_margin`, either of them may be
    faster.

    `candidates` is the number of settings that were compared. `rehearsed` of them were run on tensors without values to
    measure their peak memory; `smallest_bytes` is the smallest of these peaks (None: none was measured), and
    `validation_bytes` the smallest peak of the validation alone (None: there is no validation). `seconds` is how long
    the search took; `complete` is false if its time was up before its end.
    """

    world_size: int
    model: str
    parameters: int
    limit_bytes: int
    margin: float
    device: str
    candidates: int
    rehearsed: int
    complete: bool
    seconds: float
    plans: list[PlannedSettings]
    next_larger: PlannedSettings | None
    smallest_bytes: int | None
    speed_margin: float = 0.0
    validation_bytes: int | None = None

    @property
    def first_rank(self) -> int:
        """The number of plans that may be the fastest, because the cost model cannot tell their speeds apart."""
        return sum(one.rank == 1 for one in self.plans)

    @property
    def usable_bytes(self) -> int:
        """The memory of a device that a plan may use: `limit_bytes` without the fraction `margin`."""
        return int(self.limit_bytes * (1 - self.margin))
