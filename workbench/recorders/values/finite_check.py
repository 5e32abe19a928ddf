"""Name the first tensor, operation and module whose values are not finite. In any training script, on every rank:

    from workbench import recorders

    recorders.check_finite(model)

The gradients are checked before each optimizer step, and the parameters after it. If one of these tensors has a NaN or
an infinity, the step's log of operations is searched for the first operation that produced a NaN or infinity. This
operation is written to `not_finite/rank_R.json`. When a parameter is not finite, the check ends, because all later
values are not finite either. The check costs a reduction for each operation, so turn it on only to find a NaN.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from workbench.recorders.files import RankInfo
from workbench.recorders.memory.tensor_hooks import Removable, without_wrappers
from workbench.recorders.own_files import remove_file, save_json
from workbench.recorders.startup.settings import run_folder
from workbench.recorders.values.operation_log import (
    BACKWARD,
    FORWARD,
    INPUT,
    Operation,
    OperationLog,
    has_range,
    local_part,
    storage_of,
)

_FILLS = ("aten.masked_fill", "aten.full", "aten.fill", "aten.where", "aten.scalar_tensor", "aten.triu", "aten.tril",
         "aten.index_put", "aten.lift_fresh", "aten.zeros", "aten.ones", "aten.copy")  # fmt: skip
"""The operations that write constants or copy values: an infinity in their result is intended, as in a mask."""


class Range(NamedTuple):
    """The smallest and the largest value of a tensor."""

    low: float
    high: float

    @property
    def is_nan(self) -> bool:
        return math.isnan(self.low) or math.isnan(self.high)

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def largest(self) -> float:
        """The largest absolute value of the tensor; NaN if it has a NaN."""
        return math.nan if self.is_nan else max(abs(self.low), abs(self.high))

    def has_infinities_of(self, other: "Range") -> bool:
        """Return whether `other` has each infinity (-inf, +inf) of this range."""
        return (not math.isinf(self.low) or math.isinf(other.low)) and (
            not math.isinf(self.high) or math.isinf(other.high)
        )


def intended(operations: Sequence[Operation], ranges: Sequence[Range]) -> list[bool]:
    """Return, for each operation, whether its infinities are intended, such as the -inf in an attention mask.

    Infinities are intended if the operation fills a tensor with them, or if all of them come from intended infinities
    in the inputs. A result with a NaN is never intended. `ranges` has the range of values of each operation's result.
    """
    known: list[bool] = []
    for operation, own in zip(operations, ranges, strict=True):
        sources = [parent for parent in operation.parents if not ranges[parent].is_finite]
        from_fill = operation.name.startswith(_FILLS) and all(known[parent] for parent in sources)
        from_mask = bool(sources) and all(known[parent] and own.has_infinities_of(ranges[parent]) for parent in sources)
        known.append(not own.is_finite and not own.is_nan and (from_fill or from_mask))
    return known


def origin(operations: Sequence[Operation], ranges: Sequence[Range], broken: Iterable[int]) -> int | None:
    """Return the index of the operation that produced the first NaN or unintended infinity in the results `broken`.

    `operations` is the log in the order of time, `ranges` has the range of each operation's result, and `broken` has
    indices in the log. Only operations on which `broken` depends are searched, because a NaN that is not used does no
    harm. An infinity is intended if an operation fills a tensor with it, as in an attention mask. Return None if
    `broken` has neither a NaN nor an unintended infinity.
    """
    wanted, seen = intended(operations, ranges), set[int]()
    waiting = [number for number in broken if not ranges[number].is_finite and not wanted[number]]
    first = None
    while waiting:
        number = waiting.pop()
        if number in seen:
            continue
        seen.add(number)
        bad = [
            one
            for one in operations[number].parents
            if not ranges[one].is_finite and not wanted[one] and not _is_constant(operations[one])
        ]
        # An operation in place is logged after what it wrote over, which may be its own parent.
        waiting += [one for one in bad if one != number]
        if not bad and (first is None or number < first):
            first = number
    return first


def _is_constant(operation: Operation) -> bool:
    """Return whether a result is a single number that the script wrote, such as `nan` in `weight[0] = nan`."""
    is_outside = operation.kind == INPUT or operation.name.startswith("aten.lift_fresh")
    return is_outside and operation.elements == 1 and not operation.tensor


def losses(operations: Sequence[Operation]) -> list[int]:
    """Return the indices of forward operations before the backward pass whose result is a single number.

    One of them is the loss.
    """
    forward = takewhile(lambda number: operations[number].kind != BACKWARD, range(len(operations)))
    return [number for number in forward if operations[number].elements == 1 and operations[number].kind == FORWARD]


_SCHEMA = "workbench.not_finite/1"
PARAMETER, GRADIENT = "parameter", "gradient"
_INPUTS_SHOWN = 6


class FiniteCheck:
    """Checks in each step of one rank whether gradients and parameters are finite; if not, finds the cause.

    The check begins when the object is created. It ends at `close`, or when a parameter is not finite. `step` is the
    number of the current step; the training loop may set it, otherwise the optimizer's updates are counted from 1.
    """

    def __init__(self, models: nn.Module | Sequence[nn.Module], folder: str | Path = "outputs") -> None:
        self._models = [models] if isinstance(models, nn.Module) else list(models)
        self._path = Path(folder) / "not_finite" / f"rank_{RankInfo.here().rank}.json"
        self._log = OperationLog(self._models)
        self.step, self._suspected = 1, False
        self._handles: list[Removable] = [
            register_optimizer_step_pre_hook(self._before_update),
            register_optimizer_step_post_hook(self._after_update),
        ]
        self._begin()
        self._log.begin()
        self._is_active = True

    def close(self) -> None:
        """End the check and remove all hooks."""
        if self._is_active:
            self._is_active = False
            self._log.end()
            self._log.close()
            for handle in self._handles:
                handle.remove()

    def _begin(self) -> None:
        self._log.clear((name, tensor) for name, tensor, _ in self._tensors())

    def _tensors(self) -> Iterator[tuple[str, Tensor, str]]:
        """Yield (name, tensor, kind) of each parameter and buffer; kind is "parameter" or "buffer"."""
        for model in self._models:
            for name, parameter in model.named_parameters():
                yield without_wrappers(name), parameter, PARAMETER
            for name, buffer in model.named_buffers():
                yield without_wrappers(name), buffer, "buffer"

    def _before_update(self, *_: Any) -> None:
        """Check the gradients (a hook before the optimizer step); if one is not finite, write a report on its origin.

        The check then continues: a loss scaler may skip the update, so that training recovers.
        """
        gradients = [(name, p.grad) for name, p, kind in self._tensors() if kind == PARAMETER and p.grad is not None]
        if self._is_active and (broken := not_finite(gradients)):
            self._suspected = True
            self._write(GRADIENT, broken)

    def _after_update(self, *_: Any) -> None:
        """Check the parameters (a hook after the optimizer step), and end the check if one is not finite.

        If all parameters are finite, a new step begins. A report about this step's gradients is then deleted.
        """
        if not self._is_active:
            return
        parameters = [(name, tensor) for name, tensor, kind in self._tensors() if kind == PARAMETER]
        broken = not_finite(parameters)
        if broken and not self._suspected:
            self._write(PARAMETER, broken)
        if broken:
            self.close()
            return
        if self._suspected:
            remove_file(self._path)
        self._suspected = False
        self.step += 1
        self._begin()

    def _largest_parameter(self) -> dict[str, object] | None:
        """Return {"name", "value"} of the parameter with the largest absolute value; None if this is not finite."""
        parameters = [
            (name, local_part(tensor).detach()) for name, tensor, kind in self._tensors() if kind == PARAMETER
        ]
        known = [(float(tensor.abs().max()), name) for name, tensor in parameters if tensor.numel()]
        value, name = max(known, default=(math.nan, ""))
        return {"name": name, "value": value} if math.isfinite(value) else None

    def _write(self, kind: str, broken: Sequence[tuple[str, Tensor]]) -> None:
        """Find the operation that produced the NaN or infinity in the tensors `broken`, and write a report on it.

        `broken` has (name, tensor) pairs; `kind` says what they are, "parameter" or "gradient". The search also covers
        losses.
        """
        with _paused(self._log):
            operations = self._log.operations
            ranges = _values_of(operations)
            writers = [
                self._log.writers[place] for _, tensor in broken if (place := storage_of(tensor)) in self._log.writers
            ]
            first = origin(operations, ranges, [*losses(operations), *writers])
            content = {
                "schema": _SCHEMA, "rank": RankInfo.here().rank, "world_size": RankInfo.here().world_size,
                "step": self.step, "seen_in": kind, "seen_names": [name for name, _ in broken][:_INPUTS_SHOWN],
                "operations": len(operations), "largest_parameter": self._largest_parameter(),
                "origin": None if first is None else described(operations, ranges, first),
            }  # fmt: skip
            save_json(self._path, content)


@contextmanager
def _paused(log: OperationLog) -> Iterator[None]:
    """Return a context in which `log` is paused; at the end of the context, logging continues."""
    log.end()
    try:
        yield
    finally:
        log.begin()


@torch.no_grad()
def not_finite(named: Sequence[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Return the (name, tensor) pairs whose tensor contains a NaN or an infinity."""
    parts = [(name, tensor, local_part(tensor)) for name, tensor in named if has_range(tensor)]
    if not parts:
        return []
    # The largest absolute value of each: unlike the sum it overflows only where a value has.
    norms = torch._foreach_norm([part for _, _, part in parts], math.inf)  # noqa: SLF001  # what optimizers use
    finite = torch.stack([norm.float().isfinite() for norm in norms]).tolist()
    return [(name, tensor) for (name, tensor, _), fine in zip(parts, finite, strict=True) if not fine]


def _values_of(operations: Sequence[Operation]) -> list[Range]:
    """Return the smallest and largest value of each operation's result, copied from the device in a single transfer."""
    rows = torch.stack([operation.range for operation in operations]).tolist()
    return [Range(low, high) for low, high in rows]


def described(operations: Sequence[Operation], ranges: Sequence[Range], number: int) -> dict[str, object]:
    """Return a description of `operations[number]` for JSON: its name, module, source line and inputs.

    The description says whether the result has a NaN or an infinity, and gives the largest absolute value of each
    input. `ranges` has the range of values of each operation's result.
    """
    operation = operations[number]
    return {
        "kind": operation.kind, "operation": operation.name, "module": operation.module, "line": operation.line,
        "tensor": operation.tensor,
        "dtype": operation.dtype.removeprefix("torch."), "value": "nan" if ranges[number].is_nan else "inf",
        "inputs": [
            {
                "name": operations[one].tensor or operations[one].name, "kind": operations[one].kind,
                "largest": _json_number(ranges[one].largest),
            }
            for one in operation.parents[:_INPUTS_SHOWN]
        ],
    }  # fmt: skip


def _json_number(value: float) -> float | str:
    """Return a number as JSON can represent it: NaN and infinities become strings."""
    return value if math.isfinite(value) else str(value)


def check_finite(model: nn.Module, folder: str | Path | None = None) -> FiniteCheck:
    """Check from now on whether this rank's values are finite; return the check, whose `close` ends it.

    The gradients and parameters of `model` are checked in each step. The first operation whose result is not finite is
    written to `folder`/not_finite; without `folder`, to the folder of the run under `workbench launch`, else to
    `outputs`. Call this function once, before the first step.
    """
    return FiniteCheck(model, run_folder(folder))
