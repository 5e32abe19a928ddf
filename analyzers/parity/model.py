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
    """The kind of a recorded tensor.

    `data` is the batch. `parameter` and `buffer` are the parameters and buffers of the model at the start of the step.
    `input` and `activation` are an input and an output of a module; `input_gradient` and `activation_gradient` are
    their gradients. `gradient` is the gradient of a parameter. `optimizer` is a state or a setting of the optimizer.
    Python has the kinds in the order in which a step computes them.
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
    """The difference between a run's curve (loss or gradient norm by step) and the curve of the first run.

    `steps` is the number of steps that both runs have, and `largest` is the largest relative difference in these steps.
    `step` is the first step in which the difference exceeds the tolerance; `a` is the value of the first run in this
    step, and `b` the value of this run. `step`, `a` and `b` are None if no difference exceeds the tolerance.
    """

    curve: Curve
    steps: int
    largest: float
    step: int | None = None
    a: float | None = None
    b: float | None = None


class ValueDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The first recorded tensor that differs from the first run by more than the tolerance.

    `step` is the training step, `kind` and `name` say which tensor it is. `a` is its norm in the first run, and `b` its
    norm in this run. Three numbers of each tensor are compared: the norm, the sum of absolute values, and the sum.
    `difference` is the largest of their relative differences. `agreed` is the number of tensors that were compared
    before this one, in the order of computation; they differ by at most `agreed_to` (relative).
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
        if self.kind in (*OF_PARAMETERS, ValueKind.DATA):
            return self.name.rpartition(".")[2]
        return "output"


class RunParity(msgspec.Struct, frozen=True, kw_only=True):
    """One of the compared runs: its losses and gradient norms by step, and its differences from the first run.

    `name` shows how the settings of the run differ from those of the others, such as `tp=2`. `world_size` is the number
    of its ranks (None: not recorded), and `mesh` maps each mesh dimension to its degree. `losses` and `grad_norms` map
    each step to the mean over the ranks.

    The other fields compare the run with the first run, and are empty for the first run itself. `curves` has the
    differences of the losses and of the gradient norms. `compared_values` is the number of tensors, over all steps,
    that both runs recorded; `missing_values` is how many further tensors the run with more tensors recorded.
    `largest_value_difference` is the largest relative difference of a tensor (None: no tensors were compared), and
    `first` is the first tensor that differs by more than the tolerance (None: there is none).
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
        return min((curve.step for curve in self.curves if curve.step is not None), default=None)


class ParityData(msgspec.Struct, frozen=True, kw_only=True):
    """The field `data` of the JSON document `workbench.parity/1`: all runs, each compared with the first one.

    `tolerance` is the relative difference that is allowed, such as 1e-5.
    """

    tolerance: float
    runs: list[RunParity]


class Cause(StrEnum):
    """The part of a step that made the first difference: its input was the same in both runs, but its result was not.

    `data`: the batches differ. `weights`: the weights differ before the first step. `module`: a module returned another
    output. `between`: the code between two modules changed a tensor. `loss`: the first gradient of the backward pass
    differs, which comes from the loss. `backward`: a module returned another gradient in the backward pass.
    `weight_gradient`: the gradient of a parameter differs, after it was summed or clipped. `optimizer`: a state or a
    setting of the optimizer differs. `update`: the weights differ after an optimizer step. `buffer`: a buffer differs
    after a step, such as the running mean of a BatchNorm, which forward passes update. `precision`: only the dtypes
    differ. `drift`: there is no single origin, because the differences have grown little by little, as rounding errors
    do.
    """

    DATA = "data"
    WEIGHTS = "weights"
    MODULE = "module"
    BETWEEN = "between"
    PRECISION = "precision"
    LOSS = "loss"
    BACKWARD = "backward"
    WEIGHT_GRADIENT = "weight_gradient"
    OPTIMIZER = "optimizer"
    UPDATE = "update"
    BUFFER = "buffer"
    DRIFT = "drift"


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first tensor that differs between the runs `a` and `b`, and the module that computed it from the same input.

    `step` is the training step, `kind` and `tensor` say which tensor it is. `module` is the name of the module that
    computed it (empty: no module did), and `module_type` is the class of that module (empty: not recorded). `after` and
    `after_kind` are the tensor before it in the same part of the step, which agrees; they are empty and None if there
    is none.

    `a` and `b` are the norms of the tensor in the two runs (not finite: null in JSON). `difference` is the relative
    difference, and `tolerance` is the difference that is allowed. The difference is infinite (null in JSON) if the
    tensor is finite in only one run, or if its sizes differ. `dtype_a` and `dtype_b` are the dtypes (empty: not
    recorded); `elements_a` and `elements_b` are the numbers of elements.

    `agreed` is the number of tensors that were compared before this one. They agree, and differ by at most `agreed_to`
    (relative). Of the `of` tensors of the same kind in this step, `alike` differ by more than their tolerance.
    """

    step: int
    cause: Cause
    kind: ValueKind
    tensor: str
    module: str
    module_type: str = ""
    after: str = ""
    after_kind: ValueKind | None = None
    a: float
    b: float
    difference: float
    tolerance: float
    dtype_a: str = ""
    dtype_b: str = ""
    elements_a: int = 0
    elements_b: int = 0
    agreed: int = 0
    agreed_to: float = 0.0
    alike: int = 1
    """The number of tensors of the same kind in this step that differ by more than their tolerance."""
    of: int = 1
    """The number of tensors of the same kind that were compared in this step."""


class RecordedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two compared runs, with what it recorded.

    `ranks` is the number of its ranks, and `mesh` maps each mesh dimension to its degree. Its tensors were recorded in
    the steps from `first_step` to `last_step`; `tensors` is their number over all of these steps.
    """

    folder: str
    ranks: int
    mesh: dict[str, int]
    first_step: int
    last_step: int
    tensors: int


class BisectData(msgspec.Struct, frozen=True, kw_only=True):
    """The field `data` of `workbench.bisect/1`: the recorded tensors of run `b` compared with those of run `a`.

    The tensors are compared in the order in which a step computes them. `steps` is the number of compared steps, and
    `compared` the number of compared tensors over all steps. `not_compared` is the number of tensors that both runs
    have but that cannot be compared, because the meshes of the runs differ. `is_same_layout` says whether the runs have
    the same mesh. `only_a` and `only_b` are the names of the first few tensors that only one run has in a common step.
    `not_finite` is the number of tensors that are not finite in both runs.

    `tolerance` is the relative difference that the user allows. If it is None, each dtype has a tolerance of its own,
    which follows from its rounding errors. `tolerances` has the tolerance that was used for each dtype. `longest_sum`
    is the number of terms in the longest sum that the model computes: the longer it is, the larger rounding errors can
    be.

    `first` is the first difference, which may be one of dtypes only. `value` is the first difference of values beyond
    the tolerance. `inexact` is the first tensor that is not identical; it is None if the meshes differ, as sums are
    then rounded in different ways. Each of the three is None if there is no such difference.
    """

    a: RecordedRun
    b: RecordedRun
    steps: int
    compared: int
    not_compared: int
    is_same_layout: bool
    longest_sum: int
    tolerances: dict[str, float]
    not_finite: int
    first: Divergence | None = None
    value: Divergence | None = None
    inexact: Divergence | None = None
    only_a: list[str] = []
    only_b: list[str] = []
    tolerance: float | None = None
