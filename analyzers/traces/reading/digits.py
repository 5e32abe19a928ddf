"""Numbers and words in a text, read where they are known to stand: many at once, eight bytes at a time."""

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

WORD = 8
MARGIN = 2 * WORD
"""Bytes that must lie before the first number: it is read as if it were as long as any."""
ZERO = np.uint8(ord("0"))
ZEROS = np.uint64(int.from_bytes(b"0" * WORD, "little"))
LAST = np.array([(1 << 64) - (1 << 8 * (WORD - length)) for length in range(WORD + 1)], np.uint64)
"""Masks that keep so many of the last bytes of a word, whose first byte in the text is its lowest."""
# Neighbours become one, digits first, then pairs, then fours: what the left one is worth, how far off the right one is.
JOINS = [
    (np.uint64(10), np.uint64(8), np.uint64(0x00FF00FF00FF00FF)),
    (np.uint64(100), np.uint64(16), np.uint64(0x0000FFFF0000FFFF)),
    (np.uint64(10_000), np.uint64(32), np.uint64(0x00000000FFFFFFFF)),
]


def parts(text: bytes, start: Column, length: int) -> npt.NDArray[np.void]:
    """So many bytes of the text from each place on."""
    # As a type without alignment they are copied; as numbers numpy would cast them one by one, thirty times as slow.
    every = np.ndarray((len(text) - length + 1,), f"V{length}", buffer=text, strides=(1,))
    found: npt.NDArray[np.void] = every[start]
    return found


def width_of(length: int) -> int:
    """How many words hold so many bytes."""
    return -(-length // WORD)


def words_before(text: bytes, stop: Column, length: int) -> Words:
    """So many bytes of the text before each place, in rows of words, zeros first; seven more bytes must lie there."""
    width = width_of(length)
    found = parts(text, stop - WORD * width, WORD * width).view("<u8").reshape(-1, width)
    found[:, 0] &= LAST[length - WORD * (width - 1)]
    return found


def masked(words: Words) -> Words:
    """The words with all digits alike, and nothing else like them."""
    # Bounds of the array's own type: with others numpy takes twenty times as long.
    found: Words = np.clip(words.view(np.uint8) ^ ZERO, np.uint8(9), np.uint8(255)).view(np.uint64)
    return found


def values(text: bytes, end: Column, length: Column) -> Column:
    """The numbers of `length` digits, 16 at most, that end at `end` in the text."""
    found = joined(parts(text, end - WORD, WORD).view("<u8"), np.minimum(length, WORD))
    if (length > WORD).any():
        found += joined(parts(text, end - MARGIN, WORD).view("<u8"), np.maximum(length - WORD, 0)) * 10**WORD
    return found


def joined(words: Words, length: Column) -> Column:
    """The number that so many last bytes of each word are."""
    words ^= ZEROS
    words &= LAST[length]
    for worth, bits, kept in JOINS:
        words = (words * worth + (words >> bits)) & kept
    return words.astype(np.int64)
