r"""Parse numbers and compare texts at known positions of a long text, thousands at once, eight bytes at a time.

A *word* is eight bytes of text in one `uint64`. The word is little-endian: the first byte of the text is the lowest
byte of the word.

*Masking* makes texts equal that differ only in their digits: `b"gemm_64,"` and `b"gemm_32,"` both become
`b"WU]]o\t\t\x1c"`. Each byte is combined with the character `0` (0x30) by exclusive or, which maps the ten digits, and
no other characters, to the bytes 0 to 9. Then each byte below 9 is raised to 9, so that all digits become the same
byte, `\t`.

Parsing `b"00012345"` takes three steps on the whole word. Each step joins neighbouring numbers in pairs: it multiplies
the left number by the factor of the step and adds the right one.

    digits           0  0  0  1  2  3  4  5
    pairs      x10      0     1    23    45
    fours     x100            1        2345
    eights  x10000                    12345

The trick is known as "SIMD within a register": D. Lemire, "Quickly parsing eight digits", 2018. Here numpy does it for
a whole column of words.
"""

import numpy as np
import numpy.typing as npt

from analyzers.columns import Integers, Words

WORD_BYTES = 8
MARGIN_BYTES = 2 * WORD_BYTES
"""The number of bytes of text that must precede the end of each number, because up to 16 bytes before it are read.

A number may have 16 digits; if it has fewer, the bytes in front of it are read, too, and cleared.
"""
ZERO = np.uint8(ord("0"))
_ZEROS = np.uint64(int.from_bytes(b"0" * WORD_BYTES, "little"))
_LAST_BYTES = np.array([(1 << 64) - (1 << 8 * (WORD_BYTES - length)) for length in range(WORD_BYTES + 1)], np.uint64)
"""Masks for words of text: `word & LAST_BYTES[n]` keeps the last n bytes of the text, and clears the others.

The last bytes of the text are the higher bytes of the word.
"""
# For each step: the factor of the left neighbour, the distance of the right one in bits, the bits that hold results.
_JOIN_STEPS = [
    (np.uint64(10), np.uint64(8), np.uint64(0x00FF00FF00FF00FF)),
    (np.uint64(100), np.uint64(16), np.uint64(0x0000FFFF0000FFFF)),
    (np.uint64(10_000), np.uint64(32), np.uint64(0x00000000FFFFFFFF)),
]


def slices_at(text: bytes, start: Integers, length: int) -> npt.NDArray[np.void]:
    """Return the `length` bytes of the text that begin at each position in `start`, as an array of byte strings.

    Raises:
        IndexError: One of these byte strings would reach beyond the text.
    """
    # As a type without alignment they are copied; as numbers numpy would cast them one by one, thirty times as slow.
    at_every_byte = np.ndarray((len(text) - length + 1,), f"V{length}", buffer=text, strides=(1,))
    slices: npt.NDArray[np.void] = at_every_byte[start]
    return slices


def words_needed(length: int) -> int:
    """Return how many words of eight bytes are needed for `length` bytes."""
    return -(-length // WORD_BYTES)


def words_before(text: bytes, stop: Integers, length: int) -> Words:
    """Return, for each position in `stop`, the `length` bytes of the text that end there, as a row of words.

    The result is an array with a row per position and `words_needed(length)` columns. The first word of each row is
    filled up on the left with zero bytes. Up to seven bytes before the wanted ones are read and then cleared, so `stop`
    must not be too near to the beginning of the text.
    """
    width = words_needed(length)
    words = slices_at(text, stop - WORD_BYTES * width, WORD_BYTES * width).view("<u8").reshape(-1, width)
    words[:, 0] &= _LAST_BYTES[length - WORD_BYTES * (width - 1)]
    return words


def mask_digits(words: Words) -> Words:
    """Return the words with all digits replaced by one byte; texts that differ only in digits become equal.

    Every other character is replaced by a byte of its own.
    """
    # Bounds of the array's own type: with Python's integers numpy takes twenty times as long.
    masked: Words = np.clip(words.view(np.uint8) ^ ZERO, np.uint8(9), np.uint8(255)).view(np.uint64)
    return masked


def parse_numbers(text: bytes, end: Integers, length: Integers) -> Integers:
    """Return, for each position in `end`, the number whose last digit is directly before this position of the text.

    `length` has the number of digits of each number, 16 at most. Example: in the text `..."ts": 1023.125`, the position
    of the point and the length 4 give the number 1023.
    """
    numbers = _parse_words(slices_at(text, end - WORD_BYTES, WORD_BYTES).view("<u8"), np.minimum(length, WORD_BYTES))
    if (length > WORD_BYTES).any():
        high = slices_at(text, end - MARGIN_BYTES, WORD_BYTES).view("<u8")
        numbers += _parse_words(high, np.maximum(length - WORD_BYTES, 0)) * 10**WORD_BYTES
    return numbers


def _parse_words(words: Words, length: Integers) -> Integers:
    """Return the number in the last `length` bytes of each word, which must all be digits; `words` is overwritten."""
    words ^= _ZEROS
    # What stands before the number becomes zeros, as if it had leading ones.
    words &= _LAST_BYTES[length]
    for factor, distance, results in _JOIN_STEPS:
        words = (words * factor + (words >> distance)) & results
    return words.astype(np.int64)
