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
