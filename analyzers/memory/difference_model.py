"""Define the struct of the difference between a rank that ran out of memory and the other ranks of its job."""

from enum import StrEnum

import msgspec


class DifferenceKind(StrEnum):
    """How a rank that ran out of memory differs from the others.

    `BATCH`: tensors of nearly all lines are larger. `PART`: those of some lines are larger, those of others are equal.
    `OWN`: it allocated memory in lines that are in no recording of another rank. `MORE`: it keeps more tensors of the
    same size alive. `LAYERS`: it also has more parameters. `NO_RECOMPUTATION`: it keeps activations that the others
    recompute. `OUTSIDE`: PyTorch could get less of its device than of the others' devices.
    """

    BATCH = "batch"
    PART = "part"
    OWN = "own"
    MORE = "more"
    LAYERS = "layers"
    NO_RECOMPUTATION = "no_recomputation"
    OUTSIDE = "outside"


class Purpose(StrEnum):
    """What lines that only one rank ran are for, by the names of their functions."""

    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    AVERAGE = "average"
    OUTPUT = "output"
    UNKNOWN = "unknown"


class RankDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How a rank that ran out of memory differs from the `ranks` with which it was compared.

    `bytes` is what it needs more than any of them. `ratio` is how many times as large or as many its tensors are (None:
    it has tensors that the others have not). `frames` is the stack with most of these bytes, `line` the line in it that
    says most about them. `usual_bytes` is what the others have in place of `own_bytes`: state of the model, or memory
    that PyTorch reserved. `is_new` is whether the rank's own earlier steps did not have the difference (None: unknown).
    `until_step` is the step after which the earliest recording of the others ends.
    """

    kind: DifferenceKind
    ranks: list[int]
    bytes: int
    ratio: float | None = None
    frames: list[str] = []
    line: str = ""
    purpose: Purpose = Purpose.UNKNOWN
    own_bytes: int = 0
    usual_bytes: int = 0
    is_new: bool | None = None
    until_step: int | None = None
