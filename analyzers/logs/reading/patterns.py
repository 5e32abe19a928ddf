"""Collect the patterns of all subjects, and the words that a line must contain to be checked against them."""

import re
from collections.abc import Collection, Iterable

import numpy as np

from analyzers.case.facts import EventKind
from analyzers.failures import catalogue
from analyzers.logs.reading.line_patterns import collectives, data, devices, memory, processes, startup
from analyzers.logs.reading.line_patterns.pattern import Found
from analyzers.logs.reading.unread import WORDS as UNREAD_WORDS

_COMMON = b" etaoinsrhldcumfpgwybvkxjqz"
"""The letters of English text, the most frequent first."""
_RARE = 0.004
_FACTORS = (31, 37, 41)
_HASHES = 1 << 16


class WordFilter:
    """Finds the lines of a text that certainly contain none of a set of words; it knows several sets."""

    def __init__(self, *sets: Iterable[bytes]) -> None:
        self._sets = len(sets)
        self._tables = {length: np.zeros(_HASHES, dtype=np.uint8) for length in (3, 4)}
        """{length of a sequence of letters: for each hash, a bit for each set that has a word with this sequence}."""
        for number, words in enumerate(sets):
            for word in words:
                length = min(len(word), 4)
                grams = [word[i : i + length] for i in range(len(word) - length + 1)]
                rarest = np.frombuffer(min(grams, key=frequency), dtype=np.uint8)
                self._tables[length][_hashes(rarest, length)] |= 1 << number

    def with_words(self, lines: Collection[bytes]) -> list[list[bytes]]:
        """Return, for each set, the lines that may contain one of its words; the others certainly contain none."""
        listed = list(lines)
        content = np.frombuffer(b"\n".join(listed), dtype=np.uint8)
        ends = np.cumsum([len(line) + 1 for line in listed])
        may_match = np.zeros(len(listed), dtype=np.uint8)
        for length, table in self._tables.items():
            if len(content) >= length:
                bits = table[_hashes(content, length)]
                places = np.flatnonzero(bits)
                np.bitwise_or.at(may_match, np.searchsorted(ends, places, side="right"), bits[places])
        return [[listed[i] for i in np.flatnonzero(may_match & 1 << n)] for n in range(self._sets)]


def _hashes(
    letters: "np.ndarray[tuple[int], np.dtype[np.uint8]]", length: int
) -> "np.ndarray[tuple[int], np.dtype[np.uint16]]":
    """Return a 16-bit hash of the `length` letters that begin at each position of a text, as an array.

    `letters` are the bytes of the text. The result has `length` - 1 fewer items than the text, because no complete
    sequence begins at the last positions.
    """
    wide = letters.astype(np.uint16)
    count = len(wide) - length + 1
    value = wide[:count].copy()
    # Numbers of 16 bits overflow, which is what a hash may do.
    for offset in range(1, length):
        value *= np.uint16(_FACTORS[offset - 1])
        value += wide[offset : offset + count]
    return value


def frequency(gram: bytes) -> float:
    """Return an estimate of how frequent a sequence of letters is in English text, as a relative number."""
    product = 1.0
    for letter in gram:
        at = _COMMON.find(bytes([letter]).lower())
        product *= (0.1 * 0.85**at if at >= 0 else _RARE) * (0.1 if 65 <= letter <= 90 else 1.0)
    return product


_PATTERNS = (
    *memory.PATTERNS, *collectives.PATTERNS, *devices.PATTERNS, *data.PATTERNS, *startup.PATTERNS,
    *processes.PATTERNS,
)  # fmt: skip
"""All patterns, the most informative first, because the first pattern that matches a line decides its event."""
_LONGEST_TEXT = 8192
_STRUCTURE = ("Traceback (most recent", 'File "', "Error", "Exception", "Interrupt", "exitcode  :", "rank      :",
             "Root Cause", "SystemExit", "most recent call first")  # fmt: skip
"""Words in blocks of several lines, such as tracebacks, which are parsed although no pattern matches them."""
NOISE = re.compile(
    r"errno: 97|NCCL INFO (?!.*(?:Mismatched|Duplicate))|\[Service thread\] Connection closed by localRank"
    r"|NET/Plugin: Could not find|Exception ignored in|in atexit callback|\b(?:Future|User|Deprecation)Warning\b"
)
"""Matches lines that healthy jobs print too, and that therefore report nothing."""
WORDS = tuple(
    word.encode() for word in dict.fromkeys([*(p.word for p in _PATTERNS), *_STRUCTURE, *catalogue.LINE_WORDS])
)
TRIGGERS = re.compile(b"|".join(map(re.escape, WORDS)))
FILTER = WordFilter(WORDS, UNREAD_WORDS)


def recognise(text: str) -> Found | None:
    """Return the event that a line reports; None if no pattern matches, or if healthy jobs print the line, too."""
    text = text[:_LONGEST_TEXT]
    is_noise = bool(NOISE.search(text))
    if is_noise and not catalogue.kind_of_line(text):
        return Found(EventKind.CLUE) if catalogue.is_clue(text) else None
    for candidate in _PATTERNS:
        if candidate.word in text and (match := candidate.expression.search(text)):
            found = candidate.build(match)
            if found:
                return found
    kind = catalogue.kind_of_line(text)
    if kind:
        return Found(kind)
    return Found(EventKind.CLUE) if catalogue.is_clue(text) else None
