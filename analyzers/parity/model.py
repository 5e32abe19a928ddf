"""Define the structs of the JSON document `workbench.parity/1`."""

from enum import IntEnum, StrEnum
from os import PathLike
from typing import NamedTuple

import msgspec


class NamedRun(NamedTuple):
    """A run and its name; the name shows how its settings differ from those of the other runs, such as `tp=2`."""

    name: str
    folder: str | PathLike[str]


class ValueKind(StrEnum):
    """The kind of a recorded tensor, in the order in which a step computes them.

    `DATA` is the batch. `INPUT` and `ACTIVATION` are the input and the output of a module. `GRADIENT` is the gradient
    of a parameter. `OPTIMIZER` has states and settings of the optimizer.
    """

    DATA = "data"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    INPUT = "input"
    ACTIVATION = "activation"
    ACTIVATION_GRADIENT = "activation_gradient"
    INPUT_GRADIENT = "input_gradient"
    GRADIENT = "gradient"
    OPTIMIZER = "optimizer"


class Phase(IntEnum):
    """The part of a step that computes a tensor; `STATE` is for the weights and buffers that the step starts with."""

    DATA = 0
    STATE = 1
    FORWARD = 2
    BACKWARD = 3
    GRADIENT = 4
    UPDATE = 5


PHASES = {
    ValueKind.DATA: Phase.DATA,
    ValueKind.PARAMETER: Phase.STATE,
    ValueKind.BUFFER: Phase.STATE,
    ValueKind.INPUT: Phase.FORWARD,
    ValueKind.ACTIVATION: Phase.FORWARD,
    ValueKind.ACTIVATION_GRADIENT: Phase.BACKWARD,
    ValueKind.INPUT_GRADIENT: Phase.BACKWARD,
    ValueKind.GRADIENT: Phase.GRADIENT,
    ValueKind.OPTIMIZER: Phase.UPDATE,
}
OF_PARAMETERS = (ValueKind.PARAMETER, ValueKind.BUFFER, ValueKind.GRADIENT)
"""Kinds of tensors that are named after a module's parameter or buffer; other kinds are named after a module."""


class Curve(StrEnum):
    """A quantity that is logged in each step; its values by step (the curve) are compared between runs."""

    LOSS = "loss"
    GRAD_NORM = "grad_norm"


class CurveDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The difference of a run's curve (loss or gradient norm by step) from that of the first run.

    `steps` is the number of common steps, `largest` the largest relative difference. `step` is the first step in which
    the difference exceeds the tolerance; `a` and `b` are the values of the first run and of this run in it. `step`, `a`
    and `b` are None if there is no such step.
    """

    curve: Curve
    steps: int
    largest: float
    step: int | None = None
    a: float | None = None
    b: float | None = None


class ValueDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The first tensor that differs between two runs by more than the tolerance; `a` and `b` are its norms.

    `difference` is the largest relative difference of the norm, of the sum of absolute values, and of the sum. The
    `agreed` tensors before it differ by at most `agreed_to`.
    """

    step: int
    kind: ValueKind
    name: str
    a: float
    b: float
    difference: float
    agreed: int
    agreed_to: float

    @property
    def module(self) -> str:
        """The name of the module that outputs the tensor or has it as a parameter; empty for the batch."""
        if self.kind is ValueKind.DATA:
            return ""
        return self.name.rpartition(".")[0] if self.kind in OF_PARAMETERS else self.name

    @property
    def tensor(self) -> str:
        """The name of the tensor within its module; `output` for activations and their gradients."""
        if self.kind in (*OF_PARAMETERS, ValueKind.DATA):
            return self.name.rpartition(".")[2]
        return "output"


class RunParity(msgspec.Struct, frozen=True, kw_only=True):
    """One run, with its curves (loss and gradient norm by step) and its differences from the first run.

    `mesh` maps each mesh dimension to its degree. `compared_values` is the number of tensors, over all steps, that
    both runs recorded; `missing_values` is how many further tensors the run with more tensors recorded. `first` is
    the first tensor that differs.
    """

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
        """The first step whose loss or gradient norm differs from the first run's by more than the tolerance."""
        return min((curve.step for curve in self.curves if curve.step is not None), default=None)


class ParityData(msgspec.Struct, frozen=True, kw_only=True):
    """The field `data` of the JSON document `workbench.parity/1`: all runs, each compared with the first one.

    `tolerance` is the relative difference that is allowed.
    """

    tolerance: float
    runs: list[RunParity]
