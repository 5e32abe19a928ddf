"""Read, in the lines after an exception, the hint that its program prints."""

from analyzers.log_signs.own_hints import hint_in
from analyzers.logs.reading.prefixes import split_prefix
from analyzers.logs.reading.text import Position, lines_after
from analyzers.logs.reading.tracebacks import START

_LINES_OF_MESSAGE = 3
"""The number of lines after the one that names the exception that can still belong to its message."""


def hint_after(at: Position, key: str, *, labelled: bool) -> str | None:
    """Return the hint at the end of an exception's message; None if it has none.

    `at` is the position of the line that names the exception, and `key` the prefix of the lines of its process.
    `labelled` says whether srun put a label before each line.
    """
    for line in lines_after(at, _LINES_OF_MESSAGE):
        prefix, body = split_prefix(line, labelled)
        # Lines of other processes may come between.
        if prefix.key != key:
            continue
        if START.search(body):
            return None
        if hint := hint_in(body):
            return hint
    return None
