"""Skip the lines of a log that report no event: most lines differ from an earlier one only in digits.

The *shape* of a line is the line without its digits.
"""

import re
from dataclasses import dataclass, field

from analyzers.logs.reading.patterns import FILTER, TRIGGERS

DIGITS = b"0123456789"
_KNOWN_AT_MOST, _KNOWN_BYTES = 50_000, 600
"""The most shapes (lines without digits) that are remembered as irrelevant, and the most bytes of a shape."""
_READ_ON = 30
"""The number of lines that are parsed after a line with an event; these lines of its block may match no pattern."""
_DEPENDS_ON_DIGITS = re.compile(rb"Xid|rrno|NET/IB|xitcode|exit code|rank      :")


@dataclass
class LineFilter:
    """A memory of the lines that report no event, to skip similar lines; lines are compared without their digits.

    `boring` has the shapes (lines without their digits) that are known to report no event. `left_to_parse` is the
    number of next lines that are parsed whatever their shape, because a block of lines, such as a traceback, has begun.
    """

    boring: set[bytes] = field(default_factory=set)
    left_to_parse: int = 0

    def read_on(self) -> None:
        """Let the next `_READ_ON` lines be parsed, whatever their shape."""
        self.left_to_parse = _READ_ON

    def suspects(self, shapes: set[bytes]) -> set[bytes]:
        """Return the shapes whose lines may report an event; a shape is a line without its digits.

        Shapes without any word of a pattern are left out, and so are shapes whose lines reported no event before.
        """
        fresh = shapes - self.boring
        meaningless = FILTER.without_words(fresh)
        for shape in meaningless:
            self.skip(shape)
        return fresh.difference(meaningless)

    def matters(self, shape: bytes) -> bool:
        """Return whether a line of this shape (the line without its digits) must be parsed for events.

        Call this method exactly once for each line, because it counts the lines of a block that are parsed anyway.
        """
        if self.left_to_parse:
            self.left_to_parse -= 1
            return True
        if shape in self.boring:
            return False
        if TRIGGERS.search(shape):
            return True
        self.skip(shape)
        return False

    def skip(self, shape: bytes) -> None:
        """Skip lines of this shape (a line without its digits) from now on, because they report no event."""
        if len(shape) <= _KNOWN_BYTES:
            if len(self.boring) >= _KNOWN_AT_MOST:
                # All are forgotten, because frequent shapes are soon known again, and an order of use would cost time
                # for each line.
                self.boring.clear()
            self.boring.add(shape)

    def skip_unless_digits_matter(self, shape: bytes) -> None:
        """Skip lines of this shape from now on, after one of them reported no event, unless digits could change this.

        A shape is a line without its digits.
        """
        if not self.left_to_parse and not _DEPENDS_ON_DIGITS.search(shape) and b"Error" not in shape:
            self.skip(shape)
