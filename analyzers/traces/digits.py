"""Numbers in a text, read where they are known to stand: many at once, eight digits at a time."""

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

WORD = 8
MARGIN = 2 * WORD
"""Bytes that must lie before the first number: it is read as if it were as long as any."""
ZEROS = np.uint64(int.from_bytes(b"0" * WORD, "little"))
LAST = np.array([(1 << 64) - (1 << 8 * (WORD - length)) for length in range(WORD + 1)], np.uint64)
"""Masks that keep so many of the last bytes of a word, whose first byte in the text is its lowest."""
# Neighbours become one, digits first, then pairs, then fours: what the left one is worth, how far off the right one is.
JOINS = [
    (np.uint64(10), np.uint64(8), np.uint64(0x00FF00FF00FF00FF)),
    (np.uint64(100), np.uint64(16), np.uint64(0x0000FFFF0000FFFF)),
    (np.uint64(10_000), np.uint64(32), np.uint64(0x00000000FFFFFFFF)),
]


def words_of(text: bytes) -> Words:
    """The eight bytes at each place of a text, the first one lowest."""
    words: Words = np.ndarray((len(text) - WORD + 1,), "<u8", buffer=text, strides=(1,))
    return words


def values(text: bytes, end: Column, length: Column) -> Column:
    """The numbers of `length` digits, 16 at most, that end at `end` in the text."""
    words = words_of(text)
    found = joined(words[end - WORD], np.minimum(length, WORD))
    if (length > WORD).any():
        found += joined(words[end - MARGIN], np.maximum(length - WORD, 0)) * 10**WORD
    return found


def joined(words: Words, length: Column) -> Column:
    """The number that so many last bytes of each word are."""
    words ^= ZEROS
    words &= LAST[length]
    for worth, bits, kept in JOINS:
        words = (words * worth + (words >> bits)) & kept
    return words.astype(np.int64)
