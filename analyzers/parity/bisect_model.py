"""Define the structs of the JSON document `workbench.bisect/1`."""

from enum import StrEnum

import msgspec

from analyzers.parity.model import ValueKind


class Cause(StrEnum):
    """The kind of the first difference of two runs: the part that got the same input but returned something else.

    `DATA`: the batch. `WEIGHTS`: the weights before the first step. `BETWEEN`: code between two modules.
    `WEIGHT_GRADIENT`: summing or clipping the gradients of parameters. `UPDATE`: the weights after an optimizer step.
    `BUFFER`: a buffer after a step, such as the running mean of a BatchNorm, which forward passes update. `PRECISION`:
    only the dtypes differ. `DRIFT`: there is no single origin, differences have grown little by little.
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
    """The first tensor that differs between two runs, and the module that computed it from the same input.

    `tensor` and `kind` are the tensor's name and kind; `module` is the module's name (empty: none) and `module_type`
    its class. `after` is the tensor before it, which agrees, and `after_kind` its kind. `a` and `b` are the norms in
    both runs (NaN: not finite). `difference` is relative, and infinite if only one run is finite or the sizes differ;
    `tolerance` is the allowed difference. The `agreed` tensors before this one differ by at most `agreed_to`.
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
    """The number of tensors of the same kind that differ in this step by more than is allowed."""
    of: int = 1
    """The number of tensors of the same kind that were compared in this step."""


class RecordedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two runs: its folder, its number of ranks, its mesh, and the steps whose tensors it recorded.

    `mesh` maps each mesh dimension to its degree; `tensors` counts recorded tensors over all steps.
    """

    folder: str
    ranks: int
    mesh: dict[str, int]
    first_step: int
    last_step: int
    tensors: int


class BisectData(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of run `b` with run `a`, tensor by tensor in the order of computation.

    `first` is the first difference, which may be one of dtypes only. `value` is the first difference of values beyond
    the tolerance. `inexact` is the first tensor that is not identical, if both runs have the same mesh
    (`is_same_layout`). `only_a` and `only_b` are the first names of tensors that only one run has in a common step.
    `tolerance` is the relative difference that the user allows; if it is None, `tolerances` has the tolerance used for
    each dtype. `longest_sum` is the number of terms of the longest sum in the model; the longer it is, the larger
    rounding errors can be. `not_finite` counts tensors that are not finite in both runs.
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
