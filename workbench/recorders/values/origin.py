"""Find the operation that produced the first NaN or infinity of a step, from the step's log of operations."""

import math
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import NamedTuple

from workbench.recorders.values.operation_log import BACKWARD, FORWARD, INPUT, Operation

_FILLS = ("aten.masked_fill", "aten.full", "aten.fill", "aten.where", "aten.scalar_tensor", "aten.triu", "aten.tril",
         "aten.index_put", "aten.lift_fresh", "aten.zeros", "aten.ones", "aten.copy")  # fmt: skip
"""The operations that write constants or copy values: an infinity in their result is intended, as in a mask."""


class Range(NamedTuple):
    """The smallest and the largest value of a tensor."""

    low: float
    high: float

    @property
    def is_nan(self) -> bool:
        """Whether the tensor has a NaN."""
        return math.isnan(self.low) or math.isnan(self.high)

    @property
    def is_finite(self) -> bool:
        """Whether all values of the tensor are finite."""
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
