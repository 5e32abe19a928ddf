"""The range of numbers that each configuration key accepts."""

import math
from typing import Annotated, NamedTuple


class Bounds(NamedTuple):
    """Accepted numbers: all from `least` to `most` (both included), and the special values in `also`."""

    least: float
    most: float = math.inf
    also: tuple[float, ...] = ()

    def __contains__(self, value: object) -> bool:
        """Return whether a number is within the bounds; NaN is not."""
        return isinstance(value, int | float) and (value in self.also or self.least <= value <= self.most)

    def described(self, kind: type) -> str:
        """Return the bounds in words, such as `-1 or an integer from 1`; `kind` is the key's type, int or float."""
        numbers = "an integer" if kind is int else "a number"
        end = "" if self.most == math.inf else f" to {self.most:g}"
        return " or ".join([*(f"{value:g}" for value in self.also), f"{numbers} from {self.least:g}{end}"])


Positive = Annotated[int, Bounds(1)]
PositiveOrRest = Annotated[int, Bounds(1, also=(-1,))]
Count = Annotated[int, Bounds(0)]
Share = Annotated[float, Bounds(0, 1)]
Size = Annotated[float, Bounds(0, 1.7e308)]
Seed = Annotated[int, Bounds(-(2**63), 2**63 - 1)]
