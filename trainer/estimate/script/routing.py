"""Give sizes to what a router picks: which tokens an expert gets depends on values that are not known.

What is known is among how many experts a token chooses. Example: `topk` of [1024, 8] scores picks 2 of 8 experts for
each token. `picked == 3` then has 1024 x 2 elements, of which an eighth is true if all experts are chosen evenly, so
`torch.where(picked == 3)` has 256 rows. Without a known number of experts such an operation is refused, as before.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trainer.estimate.script.places import running_line

aten = torch.ops.aten
_CHOOSING: Mapping[Any, Callable[[Sequence[Any]], int]] = {
    aten.topk.default: lambda args: int(args[2]) if len(args) > 2 else -1,
    aten.max.dim: lambda args: int(args[1]),
    aten.argmax.default: lambda args: -1 if len(args) < 2 or args[1] is None else int(args[1]),
}
"""{operation that chooses among the elements of a dimension: function of its arguments that returns the dimension}."""
_KEEPING = {
    aten.eq.Scalar, aten.eq.Tensor, aten.gt.Scalar, aten.any.default, aten.sum.default,
    aten._to_copy.default, aten.clone.default,  # noqa: SLF001
}  # fmt: skip
"""Operations whose result depends on choices if their first argument does."""
_INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}


class Choices:
    """Remembers for tensors without values among how many experts they choose; views share what their base knows."""

    def __init__(self) -> None:
        self._experts: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        self.lines: dict[str, int] = {}

    def of(self, tensor: Tensor) -> int:
        """Return among how many experts the elements of a tensor choose; 0 if that is not known."""
        storage = tensor.untyped_storage()
        reference, experts = self._experts.get(storage._cdata, (None, 0))  # noqa: SLF001
        # A storage that is gone may have left its address to another one.
        return experts if reference is not None and reference() is storage else 0

    def note(self, func: Any, args: Sequence[Any], result: Any) -> None:
        """Remember the choices in the result of an operation."""
        if func in _CHOOSING and args[0].dim():
            chosen = result[1] if isinstance(result, (tuple, list)) else result
            self._remember(chosen, int(args[0].shape[_CHOOSING[func](args)]))
        elif func is aten.scatter_.value and self.of(args[2]):
            # The way in which `one_hot` marks what was chosen.
            self._remember(args[0], int(args[0].shape[args[1]]))
        elif func in _KEEPING and (experts := self.of(args[0])):
            self._remember(result, experts)

    def _remember(self, tensor: Tensor, experts: int) -> None:
        storage = tensor.untyped_storage()
        self._experts[storage._cdata] = weakref.ref(storage), experts  # noqa: SLF001

    def is_true(self, tensor: Tensor) -> bool:
        """Return whether a script that reads a truth value is to find it true: an expert gets some tokens."""
        return tensor.dtype is torch.bool and self.of(tensor) > 0

    def rows(self, mask: Tensor) -> Tensor | None:
        """Return the indexes of the true elements of a mask, without values; None if their number is not known."""
        experts = self.of(mask)
        if not experts:
            return None
        self.lines[running_line()] = experts
        count = -(-mask.numel() // experts)
        return mask.new_empty((count, mask.dim()), dtype=torch.int64)

    def without_masks(self, func: Any, args: Sequence[Any]) -> Sequence[Any]:
        """Return the arguments of an operation; masks by which it indexes are replaced by indexes, where possible."""
        if func not in _INDEXING:
            return args
        indices: list[Tensor | None] = []
        for index in args[1]:
            is_mask = index is not None and index.dtype is torch.bool
            rows = self.rows(index) if is_mask else None
            indices += [index] if rows is None else list(rows.unbind(1))
        return [args[0], indices, *args[2:]]

    def assumptions(self) -> list[str]:
        """Return a list with a sentence on the lines that pick the tokens of an expert; empty if there are none."""
        if not self.lines:
            return []
        lines = [line for line in self.lines if line]
        where = f" ({', '.join(lines[:3])})" if lines else ""
        most = max(self.lines.values())
        return [f"tokens are distributed evenly over {most} experts{where}; the expert that gets most needs more"]
