"""A dictionary from rows of `uint64` words to numbers, stored in numpy arrays, that looks up many rows at once.

A row is, for example, a text of 24 bytes as three words. A Python dictionary would need a key object for each row. Here
each row is hashed into one `uint64`. All hashes are searched for in the sorted hashes of the stored rows, and each row
that is found is compared word by word. So a wrong number is never returned, even if hashes collide: of two rows with
the same hash only the first one is stored, and the other one stays `UNKNOWN`.

New rows are learned during look-ups: if a row is not in the dictionary and occurs at least `LEARN_FROM` times in one
call, the caller is asked once for its number.

Example: the dictionary holds row A with the number 0, and rows [A, B, C, B, B, B, A] are looked up. A is found. B is
not, and occurs four times, so the caller is asked by `learn(1)`, the index of the first B, and returns, say, 7. C
occurs only once. The result is [0, 7, UNKNOWN, 7, 7, 7, 0], and the next look-up finds B without asking.
"""

from collections.abc import Callable

import numpy as np

from analyzers.columns import Integers, Words

UNKNOWN, UNUSABLE = -1, -2
"""The values for a row that was not learned so far, and for a row that is of no use and is not learned again."""
LEARN_FROM = 4
"""A row is learned if it occurs at least this often in one look-up; learning costs as much as decoding a few events."""
# 2**64 divided by the golden ratio, made odd: multiplicative hashing after Knuth, The Art of Computer Programming, 6.4.
_HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class RowDictionary:
    """A dictionary from rows of `width` words to one number per row.

    `words[i]` is a row, `hashes[i]` its hash and `values[i]` its number; all three are sorted by hash.
    """

    def __init__(self, width: int) -> None:
        # A different power of the factor for each word, so that the order of the words matters.
        self.factors = np.cumprod(np.full(width, _HASH_FACTOR))
        self.words: Words = np.zeros((0, width), np.uint64)
        self.hashes: Words = np.zeros(0, np.uint64)
        self.values: Integers = np.zeros(0, np.int64)

    def look_up(self, words: Words, learn: Callable[[int], int | None]) -> Integers:
        """Return the number of each row of `words`; `UNKNOWN` if the row is not in the dictionary.

        `learn` is called once for each row that is not in the dictionary and occurs at least `LEARN_FROM` times, with
        the index in `words` of its first occurrence. It returns the number to store for the row, or None to store
        nothing.
        """
        hashes = self.hashed(words)
        values = self.known_values(words, hashes)
        unknown = np.flatnonzero(values == UNKNOWN)
        frequent = unknown[self.first_of_frequent(hashes[unknown])].tolist()
        learned = {row: value for row in frequent if (value := learn(row)) is not None}
        if learned:
            rows = list(learned)
            self.add(words[rows], hashes[rows], list(learned.values()))
            values[unknown] = self.known_values(words[unknown], hashes[unknown])
        return values

    def hashed(self, words: Words) -> Words:
        """Return a hash of each row: the sum of word * (factor of the word's column), modulo 2**64."""
        # einsum sums without an array of all products, unlike `(words * factors).sum(axis=1)`.
        hashes: Words = np.einsum("ij,j", words, self.factors)
        return hashes

    def known_values(self, words: Words, hashes: Words) -> Integers:
        """Return the stored number of each row of `words`, or `UNKNOWN`; `hashes` are the hashes of these rows."""
        if not len(self.hashes):
            return np.full(len(hashes), UNKNOWN)
        candidate = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        # A dictionary of one row, as most are, is compared by broadcasting instead of copying that row for each.
        expected = self.words if len(self.words) == 1 else self.words.take(candidate, axis=0)
        return np.where((expected == words).all(axis=1), self.values.take(candidate), UNKNOWN)

    def first_of_frequent(self, hashes: Words) -> Integers:
        """Return the index in `hashes` of the first occurrence of each hash that is new and frequent.

        A hash is new if no stored row has it, and frequent if it occurs at least `LEARN_FROM` times.
        """
        if len(hashes) < LEARN_FROM:
            return np.zeros(0, np.int64)
        distinct, first, count = np.unique(hashes, return_index=True, return_counts=True)
        return first[(count >= LEARN_FROM) & ~np.isin(distinct, self.hashes)]

    def add(self, words: Words, hashes: Words, values: list[int]) -> None:
        """Store the rows `words` with their hashes and numbers (`values`); none of these hashes may be stored yet."""
        hashes = np.append(self.hashes, hashes)
        order = np.argsort(hashes)
        self.words = np.vstack([self.words, words])[order]
        self.hashes, self.values = hashes[order], np.append(self.values, values)[order]
