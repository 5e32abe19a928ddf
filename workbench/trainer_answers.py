"""What the trainer says without training: the structs of `workbench.estimate/1` and `workbench.tokens/1`."""

import msgspec


class RankMemory(msgspec.Struct, frozen=True):
    """Peak memory in bytes of `count` equal ranks, of which one is `first_rank`: total, by category and by window."""

    first_rank: int
    count: int
    peak_bytes: int
    peak_window: str
    categories: dict[str, int]
    windows: dict[str, int]


class Alternative(msgspec.Struct, frozen=True):
    """An alternative setting, and the peak memory in bytes of the fullest rank under it."""

    setting: str
    peak_bytes: int


class TrainerEstimate(msgspec.Struct, frozen=True):
    """The JSON that `python -m trainer.estimate` prints; `assumptions` are sentences on where a run may differ."""

    world_size: int
    mesh: dict[str, int]
    model: str
    parameters: int
    layers: int
    assumptions: list[str]
    ranks: list[RankMemory]

    @property
    def peak_bytes(self) -> int:
        """The peak of the fullest rank."""
        return max(rank.peak_bytes for rank in self.ranks)


class EstimateData(TrainerEstimate, frozen=True):
    """The data of an estimate report; `options`: settings that need less, if the peak comes near `limit_bytes`."""

    limit_bytes: int | None
    options: list[Alternative]


class Position(msgspec.Struct, frozen=True):
    """One position of a sequence: the token that the model reads, and the label that it must predict."""

    sequence: int
    position: int
    token: int
    text: str
    label: int
    label_text: str


class TokensData(msgspec.Struct, frozen=True):
    """The first training sequences, a row per position; `left_over` tokens at the end of the text are never used."""

    seq_len: int
    tokens: int
    sequences: int
    left_over: int
    rows: list[Position]
