"""What the trainer says without training: the structs of `workbench.estimate/1` and `workbench.tokens/1`."""

import msgspec


class RankMemory(msgspec.Struct, frozen=True):
    """Memory of `count` ranks that are like `first_rank`: by category at the peak, and at most in each window."""

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
    """What `python -m trainer.estimate` prints; `assumptions` names what the trainer itself does not have."""

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
    """The data of an estimate; `options` is filled where `limit_bytes` is given and the run comes near it."""

    limit_bytes: int | None
    options: list[Alternative]


class Position(msgspec.Struct, frozen=True):
    """One position of a sequence; every label counts, as the trainer masks none."""

    sequence: int
    position: int
    token: int
    text: str
    label: int
    label_text: str


class TokensData(msgspec.Struct, frozen=True):
    """The first sequences; the `left_over` tokens at the end of the text are too few for one and are never used."""

    seq_len: int
    tokens: int
    sequences: int
    left_over: int
    rows: list[Position]
