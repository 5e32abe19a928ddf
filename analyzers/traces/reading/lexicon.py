"""What rows of words mean, for many rows at once.

The words of a row are weighed into one number, by which the row is found among those that are known. Two rows may
weigh the same, so the words themselves are compared, too: what is found is right, and a row that is not found is not
known, or weighs as much as one that is.
"""

from collections.abc import Callable

import numpy as np

from analyzers.columns import Column
from analyzers.traces.reading.digits import Words

UNMET, REFUSED = -1, -2
"""Meanings of a row: that none is known, and that none must be looked for."""
WORTH_LEARNING = 4
"""Times that a row is met at once."""
WEIGHT = np.uint64(0x9E3779B97F4A7C15)


class Lexicon:
    """Rows of `width` words and what each means; `numbers` are what the rows weigh, and ascend."""

    def __init__(self, width: int) -> None:
        self.weights = np.cumprod(np.full(width, WEIGHT))
        self.words: Words = np.zeros((0, width), np.uint64)
        self.numbers = np.zeros(0, np.uint64)
        self.means = np.zeros(0, np.int64)

    def meaning(self, words: Words, learn: Callable[[int], int | None]) -> Column:
        """What each row means. `learn` tells it of one that is met often, given its place, unless it cannot."""
        numbers = self.weighed(words)
        found = self.look_up(words, numbers)
        unmet = np.flatnonzero(found == UNMET)
        often = unmet[self.often(numbers[unmet])].tolist()
        learnt = {place: meaning for place in often if (meaning := learn(place)) is not None}
        if learnt:
            self.keep(words[list(learnt)], numbers[list(learnt)], list(learnt.values()))
            found[unmet] = self.look_up(words[unmet], numbers[unmet])
        return found

    def weighed(self, words: Words) -> Words:
        found: Words = np.einsum("ij,j", words, self.weights)
        return found

    def look_up(self, words: Words, numbers: Words) -> Column:
        if not len(self.numbers):
            return np.full(len(numbers), UNMET)
        place = np.minimum(np.searchsorted(self.numbers, numbers), len(self.numbers) - 1)
        known = self.words if len(self.words) == 1 else self.words.take(place, axis=0)
        same = (known == words).all(axis=1)
        return np.where(same, self.means.take(place), UNMET)

    def often(self, numbers: Words) -> Column:
        """Where each number first stands that is met often and belongs to no known row."""
        if len(numbers) < WORTH_LEARNING:
            return np.zeros(0, np.int64)
        values, first, count = np.unique(numbers, return_index=True, return_counts=True)
        found: Column = first[(count >= WORTH_LEARNING) & ~np.isin(values, self.numbers)]
        return found

    def keep(self, words: Words, numbers: Words, means: list[int]) -> None:
        numbers = np.append(self.numbers, numbers)
        order = np.argsort(numbers)
        self.words = np.vstack([self.words, words])[order]
        self.numbers, self.means = numbers[order], np.append(self.means, means)[order]
