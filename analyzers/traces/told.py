"""Events of one masked text told apart by the digits in their names, shapes and other texts, many at once.

Such digits are read in words of eight bytes, and the words are weighed into one number by which the kind is found. Two
kinds might have the same number, so the words themselves are compared, too.
"""

from bisect import bisect_left
from collections.abc import Callable

import numpy as np

from analyzers.traces.digits import WORD, Words, words_of
from analyzers.traces.table import Column
from analyzers.traces.templates import Template

UNMET, REFUSED = -1, -2
"""What no kind has: that nothing is known of it, and that it is to be decoded always."""
WORTH_LEARNING = 4
"""Times that a text is met in a block."""
WORDS_AT_MOST = 64
WEIGHT, FOLD = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)


class Told:
    """The kinds of templates whose texts hold digits.

    `ends` and `masks` say where the words of each template end behind the event's beginning, and which bytes of them
    count. Of each known kind there are its `words`, the first one the number of its template, and their weighed
    `numbers`, which ascend.
    """

    def __init__(self) -> None:
        self.templates: list[Template] = []
        self.ends = np.zeros((0, WORDS_AT_MOST), np.int64)
        self.masks = np.zeros((0, WORDS_AT_MOST), np.uint64)
        self.widths = np.zeros(0, np.int64)
        self.words = np.zeros((0, 1 + WORDS_AT_MOST), np.uint64)
        self.numbers = np.zeros(0, np.uint64)
        self.kinds = np.zeros(0, np.int64)

    def add(self, template: Template) -> int | None:
        """The number of a new template; None where its texts are too long."""
        words = covering([place for run in template.told for place in range(*run)])
        if len(words) > WORDS_AT_MOST:
            return None
        padding = (0, WORDS_AT_MOST - len(words))
        self.ends = np.vstack([self.ends, np.pad(np.array([end for end, _ in words], np.int64), padding)])
        self.masks = np.vstack([self.masks, np.pad(np.array([mask for _, mask in words], np.uint64), padding)])
        self.widths = np.append(self.widths, len(words))
        self.templates.append(template)
        return len(self.templates) - 1

    def of(self, text: bytes, start: Column, template: Column, learn: Callable[[int], int | None]) -> Column:
        """The kind of each event that begins at `start` in the text; `learn` gives that of one that is met often."""
        words = self.read(text, start, template)
        numbers = weighed(words)
        kinds = self.look_up(words, numbers)
        unmet = np.flatnonzero(kinds == UNMET)
        often = unmet[self.often(numbers[unmet])].tolist()
        learnt = {one: kind for one in often if (kind := learn(one)) is not None}
        if learnt:
            self.keep(words[list(learnt)], numbers[list(learnt)], list(learnt.values()))
            kinds[unmet] = self.look_up(words[unmet], numbers[unmet])
        return kinds

    def read(self, text: bytes, start: Column, template: Column) -> Words:
        """A row an event: its template and the words of its texts, zeros behind them."""
        width = int(self.widths[template].max(initial=0))
        # Only the first event of a text begins less than a word behind the text's beginning; it is never known.
        places = np.maximum(start[:, None] + self.ends[template, :width] - WORD, 0)
        found: Words = np.column_stack([template.astype(np.uint64), words_of(text)[places]])
        found[:, 1:] &= self.masks[template, :width]
        return found

    def look_up(self, words: Words, numbers: Words) -> Column:
        if not len(self.numbers):
            return np.full(len(numbers), UNMET)
        place = np.minimum(np.searchsorted(self.numbers, numbers), len(self.numbers) - 1)
        same = (self.words[place, : words.shape[1]] == words).all(axis=1)
        return np.where(same, self.kinds[place], UNMET)

    def often(self, numbers: Words) -> Column:
        """Where each number first stands that is met often and belongs to no other kind."""
        values, first, count = np.unique(numbers, return_index=True, return_counts=True)
        found: Column = first[(count >= WORTH_LEARNING) & ~np.isin(values, self.numbers)]
        return found

    def keep(self, words: Words, numbers: Words, kinds: list[int]) -> None:
        numbers = np.append(self.numbers, numbers)
        order = np.argsort(numbers)
        words = np.pad(words, ((0, 0), (0, self.words.shape[1] - words.shape[1])))
        self.words = np.vstack([self.words, words])[order]
        self.numbers, self.kinds = numbers[order], np.append(self.kinds, kinds)[order]


def covering(places: list[int]) -> list[tuple[int, int]]:
    """(end, mask) of as few words as hold all these places, which ascend; the masks keep just them."""
    found = []
    while places:
        begin = places[-1] + 1 - WORD
        inside = places[bisect_left(places, begin) :]
        found.append((begin + WORD, sum(0xFF << 8 * (place - begin) for place in inside)))
        places = places[: -len(inside)]
    return found


def weighed(words: Words) -> Words:
    """A number for each row of words; rows that differ have different ones, but for a chance in 2**64."""
    found = np.zeros(len(words), np.uint64)
    for word in words.T:
        found ^= word
        found *= WEIGHT
        found ^= found >> FOLD
    return found
