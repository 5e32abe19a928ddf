"""Find jumps of the loss among its first values, which are too few, and fall too fast, to estimate their noise."""

import numpy as np

from analyzers.columns import Floats

_EARLY = 30
"""The number of first values that are searched. After them there are enough values to estimate the noise."""
_FIRST = 4
"""The smallest index of a jump: at least three changes precede it."""
_NEIGHBOURS, _NEIGHBOURS_AT_LEAST = 6, 6
"""How many changes before a jump, and as many after it, it is compared with, and the fewest of both together."""
_TIMES = 3.0
"""How many times as large as the largest of these changes a jump is. In simulated healthy runs none is that large."""
_BACK = 1 / 3
"""A jump is over once the loss is back within this share of the rise."""


@np.errstate(over="ignore", invalid="ignore")  # a logged value may be close to the largest that there is
def early_jumps(numbers: Floats, share: float) -> dict[int, float]:
    """Return the level before each jump among the first values of a loss, by the index at which the jump begins.

    A jump exceeds both values before it by the fraction `share` of the level, and by TIMES the largest change between
    neighbours around it. For example, 5.9, 4.4, 3.5, 3.0, 2.6, 2.4, 2.3, 5.1, 2.3 has one, of 2.7 from a level of 2.4:
    the largest of the other `changes` is 0.6.
    """
    smallest = 0.1 * float(np.median(np.abs(numbers)))
    numbers = numbers[: _EARLY + 2 * _NEIGHBOURS]
    sizes, levels, over = changes(numbers), dict[int, float](), 0
    for at in range(_FIRST, min(len(numbers), _EARLY)):
        level = float(numbers[at - 2 : at].max())
        rise = float(numbers[at]) - level
        if at < over or rise <= share * max(abs(level), smallest):
            continue
        back = np.flatnonzero(numbers[at:] <= level + _BACK * rise)
        end = at + int(back[0]) if len(back) else len(numbers)
        around = np.concatenate([sizes[max(0, at - 1 - _NEIGHBOURS) : at - 1], sizes[end : end + _NEIGHBOURS]])
        if len(around) >= _NEIGHBOURS_AT_LEAST and rise >= _TIMES * float(around.max()):
            levels[at], over = level, end
    return levels


def changes(numbers: Floats) -> Floats:
    """Return how much each value differs from the next, in which a fall counts only as far as it deviates from the fall
    before it: a loss that falls fast and steadily has little noise.
    """
    differences = np.diff(numbers)
    sizes: Floats = np.abs(differences)
    deviations = np.abs(np.diff(differences))
    from_neighbour = np.append(deviations[:1], deviations)  # the first fall has none before it: from the one after it
    return np.where(differences < 0, np.minimum(sizes, from_neighbour), sizes)
