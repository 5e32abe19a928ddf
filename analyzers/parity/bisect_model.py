"""Define the structs of the JSON document `workbench.bisect/1`."""

from enum import StrEnum

import msgspec

from analyzers.parity.model import ValueKind


class Cause(StrEnum):
    """The kind of the first difference of two runs, named after what got the same in both and returned something else.

    `BETWEEN` is code between two modules. `DRIFT` has no single origin: differences have grown little by little.
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
    DRIFT = "drift"


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first tensor that differs between two runs, and the module that got the same and computed it otherwise.

    `tensor` and `kind` are the tensor's, `module` is the module's name (empty: no module), `module_type` its class, and
    `after` the tensor before it, of `after_kind`, which agrees. `a` and `b` are norms; NaN where a norm is not finite.
    `difference` is relative, and infinite if only one run is finite or the sizes differ; `tolerance` is what its dtype
    allows. The `agreed` tensors before it differ by at most `agreed_to`.
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
    """The number of tensors of the same kind that differ in this step."""
    of: int = 1
    """The number of tensors of the same kind that were compared in this step."""


class RecordedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two runs: its ranks, its mesh, and the steps whose tensors it recorded."""

    folder: str
    ranks: int
    mesh: dict[str, int]
    first_step: int
    last_step: int
    tensors: int


class BisectData(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of run `b` with run `a`, tensor by tensor in the order of computation.

    `first` is the first difference: that of a dtype, or that of a value. `value` is the first difference of a value
    beyond the tolerance. `inexact` is the first tensor that is not identical, if both have the same mesh.
    `only_a` and `only_b` are the first names of tensors that one run alone has in a common step. `tolerance` is the
    relative difference that the user allows (None: that of `tolerances`, by dtype).
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
