"""Define the structs of the JSON document `workbench.bisect/1`."""

from enum import StrEnum

import msgspec

from analyzers.parity.model import ValueKind


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
