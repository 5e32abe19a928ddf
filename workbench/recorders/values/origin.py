"""Find the operation at which values stopped being finite, from the log of a step."""

import math
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import NamedTuple

from workbench.recorders.values.operation_log import BACKWARD, FORWARD, INPUT, Operation

FILLS = ("aten.masked_fill", "aten.full", "aten.fill", "aten.where", "aten.scalar_tensor", "aten.triu", "aten.tril",
         "aten.index_put", "aten.lift_fresh", "aten.zeros", "aten.ones", "aten.copy")  # fmt: skip
"""Operations that write an infinity only where the user wants one, as in the mask of attention."""


class Range(NamedTuple):
    """The smallest and the largest value of a tensor."""

    low: float
    high: float

    @property
    def is_nan(self) -> bool:
        """Whether a value is NaN."""
        return math.isnan(self.low) or math.isnan(self.high)

    @property
    def is_finite(self) -> bool:
        """Whether all values are finite."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def largest(self) -> float:
        """The largest absolute value; NaN if a value is NaN."""
        return math.nan if self.is_nan else max(abs(self.low), abs(self.high))

    def has_infinities_of(self, other: "Range") -> bool:
        """Return whether the infinities here are on the same side as those of `other`."""
        return (not math.isinf(self.low) or math.isinf(other.low)) and (
            not math.isinf(self.high) or math.isinf(other.high)
        )


def intended(operations: Sequence[Operation], ranges: Sequence[Range]) -> list[bool]:
    """Return for each operation whether its infinities are intended: those of a mask, and what is computed with it."""
    known: list[bool] = []
    for operation, own in zip(operations, ranges, strict=True):
        sources = [parent for parent in operation.parents if not ranges[parent].is_finite]
        from_fill = operation.name.startswith(FILLS) and all(known[parent] for parent in sources)
        from_mask = bool(sources) and all(known[parent] and own.has_infinities_of(ranges[parent]) for parent in sources)
        known.append(not own.is_finite and not own.is_nan and (from_fill or from_mask))
    return known


def origin(operations: Sequence[Operation], ranges: Sequence[Range], broken: Iterable[int]) -> int | None:
    """Return the first operation from which the `broken` ones got their NaN or infinity; None if all are finite.

    Only operations count that a broken one depends on: a NaN that nothing uses does no harm.
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
            if not ranges[one].is_finite and not wanted[one] and not is_constant(operations[one])
        ]
        # An operation in place is logged after what it wrote over, which may be its own parent.
        waiting += [one for one in bad if one != number]
        if not bad and (first is None or number < first):
            first = number
    return first


def is_constant(operation: Operation) -> bool:
    """Return whether a tensor is a number that the script wrote into an operation, such as `weight[0] = nan`."""
    is_outside = operation.kind == INPUT or operation.name.startswith("aten.lift_fresh")
    return is_outside and operation.elements == 1 and not operation.tensor


def losses(operations: Sequence[Operation]) -> list[int]:
    """Return the operations before the backward pass that return a single number, as the loss is."""
    forward = takewhile(lambda number: operations[number].kind != BACKWARD, range(len(operations)))
    return [number for number in forward if operations[number].elements == 1 and operations[number].kind == FORWARD]
