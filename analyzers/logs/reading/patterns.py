"""Collect the patterns of all subjects, and the words that a line must contain to be checked against them."""

import re

from analyzers.logs.reading.line_patterns import collectives, data, devices, memory, processes, startup
from analyzers.logs.reading.line_patterns.pattern import Found
from analyzers.logs.reading.word_filter import WordFilter

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
WORDS = tuple(word.encode() for word in dict.fromkeys([*(p.word for p in _PATTERNS), *_STRUCTURE]))
TRIGGERS = re.compile(b"|".join(map(re.escape, WORDS)))
FILTER = WordFilter(WORDS)


def recognise(text: str) -> Found | None:
    """Return the event that a line reports; None if no pattern matches, or if healthy jobs print the line, too."""
    if NOISE.search(text):
        return None
    text = text[:_LONGEST_TEXT]
    for candidate in _PATTERNS:
        if candidate.word in text and (match := candidate.expression.search(text)):
            found = candidate.build(match)
            if found:
                return found
    return None
