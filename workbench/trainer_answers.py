"""The data of the reports that the trainer makes without training: `workbench.estimate/1` and `workbench.plan/1`."""

import msgspec


class RankMemory(msgspec.Struct, frozen=True):
    """The estimated peak memory, in bytes, of `count` ranks that need the same memory; `first_rank` is the first.

    `categories` has the bytes of each category of memory at the peak, and `modules` those of each module, as {module:
    {category: bytes}}: their sums by category are `categories`. Equal layers have one name, such as
    `layers.*.attention`, and what belongs to no module has a name in parentheses. `windows` has the peak of each
    window, which is a part of the step such as the forward pass of the first layer; the peak of the step is in
    `peak_window`. `peak_line` is the line of a script that runs then; it is empty for a configuration.
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
    """An alternative setting, and the highest peak memory of any rank with it, in bytes."""

    setting: str
    peak_bytes: int


class TrainerEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON that `python -m trainer.estimate` prints; `assumptions` are sentences on how a real run may differ.

    For a script, `device` is the device whose memory is counted, and `steps` is the number of steps that ran on tensors
    without values.
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
    """The data of an estimate report (`workbench.estimate/1`): the trainer's estimate and the memory limit.

    If the peak comes near `limit_bytes` or exceeds it, `options` has settings that may need less memory.
    """

    limit_bytes: int | None
    options: list[Alternative]


class PlannedSettings(msgspec.Struct, frozen=True):
    """Settings that `workbench plan` proposes, with the memory and the speed to expect of them.

    `peak_bytes` is the highest peak memory of a rank in a rehearsal: a step with tensors that have no values. `step_s`
    and `tokens_per_s` come from a cost model; `time` is {part of the step, such as compute: seconds}. `rank` is 1 more
    than the number of plans that are faster by more than the model's margin: it cannot tell plans of equal rank apart.
    """

    settings: dict[str, bool | int | str]
    peak_bytes: int
    step_s: float
    tokens_per_s: float
    tokens_per_step: int
    time: dict[str, float]
    rank: int | None = None


class PlanData(msgspec.Struct, frozen=True):
    """The data of `workbench.plan/1`: settings with which a job fits into memory.

    `plans` are these settings, the fastest first; `next_larger` is the first of them with the next larger batch, which
    may not fit. Two speeds that differ by less than the fraction `speed_margin` may have another order. Of the
    `candidates` settings that were compared, `rehearsed` were run without tensor values to measure their peak memory;
    `smallest_bytes` is the smallest of these peaks. The search took `seconds`; `complete` is false if its time was up
    before its end.
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

    @property
    def first_rank(self) -> int:
        """The number of plans that may be the fastest, because the cost model cannot tell their speeds apart."""
        return sum(one.rank == 1 for one in self.plans)

    @property
    def usable_bytes(self) -> int:
        """The memory of a device that a plan may use: `limit_bytes` without the fraction `margin`."""
        return int(self.limit_bytes * (1 - self.margin))
