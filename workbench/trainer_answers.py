"""What the trainer answers without training: the structs of `workbench.estimate/1` and `workbench.tokens/1`."""

import msgspec


class RankMemory(msgspec.Struct, frozen=True):
    """What `count` ranks hold that are like `first_rank`: at the peak by category, and in each window at most."""

    first_rank: int
    count: int
    peak_bytes: int
    peak_window: str
    categories: dict[str, int]
    windows: dict[str, int]


class Option(msgspec.Struct, frozen=True):
    """Another setting, rehearsed as well, and the peak of the fullest rank under it."""

    setting: str
    peak_bytes: int


class Rehearsed(msgspec.Struct, frozen=True):
    """What `python -m trainer.estimate` prints. `assumptions` name what the trainer itself does not have."""

    world_size: int
    mesh: dict[str, int]
    model: str
    parameters: int
    layers: int
    assumptions: list[str]
    ranks: list[RankMemory]

    @property
    def peak_bytes(self) -> int:
        """Of the fullest rank."""
        return max(rank.peak_bytes for rank in self.ranks)


class EstimateData(Rehearsed, frozen=True):
    """`data` of an estimate. `options` are filled where `limit_bytes` is given and the run comes near it."""

    limit_bytes: int | None
    options: list[Option]


class Position(msgspec.Struct, frozen=True):
    """One position of a sequence. Every label counts: the trainer masks none."""

    sequence: int
    position: int
    token: int
    text: str
    label: int
    label_text: str


class TokensData(msgspec.Struct, frozen=True):
    """`left_over` tokens at the end of the text are less than a sequence and are never seen."""

    seq_len: int
    tokens: int
    sequences: int
    left_over: int
    rows: list[Position]
