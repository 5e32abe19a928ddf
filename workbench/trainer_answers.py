"""The data of the reports that the trainer makes without training: `workbench.estimate/1` and `workbench.tokens/1`."""

import msgspec


class RankMemory(msgspec.Struct, frozen=True):
    """Peak memory in bytes of `count` equal ranks, the first of which is `first_rank`: total, by category and by
    window.

    A window is a part of the step, such as the forward pass of the first layer.
    """

    first_rank: int
    count: int
    peak_bytes: int
    peak_window: str
    categories: dict[str, int]
    windows: dict[str, int]


class Alternative(msgspec.Struct, frozen=True):
    """An alternative setting, and the highest peak memory of any rank with it, in bytes."""

    setting: str
    peak_bytes: int


class TrainerEstimate(msgspec.Struct, frozen=True):
    """The JSON that `python -m trainer.estimate` prints; `assumptions` are sentences on how a run may differ."""

    world_size: int
    mesh: dict[str, int]
    model: str
    parameters: int
    layers: int
    assumptions: list[str]
    ranks: list[RankMemory]

    @property
    def peak_bytes(self) -> int:
        """The highest peak memory of any rank, in bytes."""
        return max(rank.peak_bytes for rank in self.ranks)


class EstimateData(TrainerEstimate, frozen=True):
    """The data of an estimate report; if the peak comes near `limit_bytes`, `options` has settings that need less
    memory.
    """

    limit_bytes: int | None
    options: list[Alternative]


class PlannedSettings(msgspec.Struct, frozen=True):
    """Settings that a plan may choose, their rehearsed peak in bytes, and the step that a cost model expects.

    `time` has the seconds of a step by what they are spent on.
    """

    settings: dict[str, bool | int | str]
    peak_bytes: int
    step_s: float
    tokens_per_s: float
    tokens_per_step: int
    time: dict[str, float]


class PlanData(msgspec.Struct, frozen=True):
    """The data of `workbench.plan/1`: the settings that fit, the fastest first, and the next larger batch of the first.

    `candidates` is how many choices were compared, `rehearsed` how many were rehearsed in `seconds`; `smallest_bytes`
    is the smallest rehearsed peak. `complete` is false where the search ended because its time was up.
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

    @property
    def usable_bytes(self) -> int:
        """The limit without the margin."""
        return int(self.limit_bytes * (1 - self.margin))


class Position(msgspec.Struct, frozen=True):
    """A position in a sequence: the token that the model reads, and the label that it must predict."""

    sequence: int
    position: int
    token: int
    text: str
    label: int
    label_text: str


class TokensData(msgspec.Struct, frozen=True):
    """The first training sequences, a row per position; `left_over` is the number of unused tokens at the end of the
    text.
    """

    seq_len: int
    tokens: int
    sequences: int
    left_over: int
    rows: list[Position]
