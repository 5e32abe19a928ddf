"""The structs of the JSON document `workbench.parity/1`."""

from enum import StrEnum
from os import PathLike
from typing import NamedTuple

import msgspec


class NamedRun(NamedTuple):
    """A run and what it is called: what it was asked to do otherwise than the others."""

    name: str
    folder: str | PathLike[str]


class ValueKind(StrEnum):
    """What a recorded tensor is, in the order in which a step makes them."""

    DATA = "data"
    PARAMETER = "parameter"
    ACTIVATION = "activation"
    ACTIVATION_GRADIENT = "activation_gradient"
    GRADIENT = "gradient"


class Curve(StrEnum):
    """A quantity that is logged in each step and compared between runs."""

    LOSS = "loss"
    GRAD_NORM = "grad_norm"


class CurveDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How a run's curve differs from that of the first run: relative, at its largest over the common steps.

    `step` is the first step beyond the tolerance, `a` and `b` the values there; None: never.
    """

    curve: Curve
    steps: int
    largest: float
    step: int | None = None
    a: float | None = None
    b: float | None = None


class ValueDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The first tensor beyond the tolerance: its norms in both runs, and their largest relative difference in sums.

    `agreed` tensors come before it, and differ by `agreed_to` at most.
    """

    step: int
    kind: ValueKind
    name: str
    a: float
    b: float
    difference: float
    agreed: int
    agreed_to: float


class RunParity(msgspec.Struct, frozen=True, kw_only=True):
    """One run against the first: its curves by step, and how these and its tensors differ."""

    name: str
    folder: str
    world_size: int | None
    mesh: dict[str, int]
    losses: dict[int, float]
    grad_norms: dict[int, float]
    curves: list[CurveDifference] = []
    compared_values: int = 0
    largest_value_difference: float | None = None
    missing_values: int = 0
    first: ValueDifference | None = None

    @property
    def first_step(self) -> int | None:
        """The first step whose loss or gradient norm is beyond the tolerance."""
        return min((curve.step for curve in self.curves if curve.step is not None), default=None)


class ParityData(msgspec.Struct, frozen=True, kw_only=True):
    """All runs, the first of which the others are compared with, and the relative difference that is allowed."""

    tolerance: float
    runs: list[RunParity]
