"""The texts, frames and stacks of one snapshot, each looked up once."""

import re
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from analyzers.columns import Column
from analyzers.frames import Origin, origin_of

Frame = tuple[str, str, int]
"""Name, file, line."""

# What takes the stack or hands memory out, below the operation that asked for it: innermost where stacks="all".
PLUMBING = re.compile(r"torch::(unwind|CapturedTraceback|cuda)::|c10::|at::(detail::|TensorBase )")


def is_internal(file: str) -> bool:
    """Whether a file is none that the user may have written or chosen."""
    return origin_of(file) <= Origin.RUNTIME


def written(frame: Frame) -> str:
    name, file, line = frame
    return f"{file or '??'}:{line} {name}" if file or line else name


class Frames:
    """Reads the columns that `tables.Interned` wrote."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        # Of memory-mapped columns plain views: these are indexed ten times as fast.
        self._text_end, self._text_bytes = (np.asarray(columns[name]) for name in ("text_end", "text_bytes"))
        self._stack_end, self._stack_frames = (np.asarray(columns[name]) for name in ("stack_end", "stack_frames"))
        self._parts = [np.asarray(columns[f"frame_{name}"]) for name in ("name", "file", "line")]
        self._texts: dict[int, str] = {}
        self._frames: dict[int, Frame] = {}

    def text(self, number: int) -> str:
        if number not in self._texts:
            start = int(self._text_end[number - 1]) if number else 0
            content = self._text_bytes[start : int(self._text_end[number])].tobytes()
            self._texts[number] = content.decode("utf-8", "replace")
        return self._texts[number]

    def frame(self, number: int) -> Frame:
        if number not in self._frames:
            name, file, line = (int(part[number]) for part in self._parts)
            self._frames[number] = (self.text(name), self.text(file), line)
        return self._frames[number]

    def user_stack(self, stack: int) -> list[Frame]:
        """The user's own frames, innermost first; where there are none all from the operation that allocates on."""
        start, end = self._span(stack)
        numbers = self._stack_frames[start:end]
        chosen = numbers[self._is_user[numbers]]
        return [
            self.frame(number) for number in (chosen if len(chosen) else numbers[self._told(start, end) :]).tolist()
        ]

    def innermost(self, stack: int) -> Frame | None:
        """The first frame of `user_stack`; None where there is no frame."""
        start, end = self._span(stack)
        first = int(self._next_user[start])
        first = first if first < end else start + self._told(start, end)
        return self.frame(int(self._stack_frames[first])) if start < end else None

    def line(self, stack: int) -> str:
        """The innermost frame as text; empty where there is none."""
        frame = self.innermost(stack)
        return written(frame) if frame else ""

    def _span(self, stack: int) -> tuple[int, int]:
        return int(self._stack_end[stack - 1]) if stack else 0, int(self._stack_end[stack])

    def _told(self, start: int, end: int) -> int:
        """How many of the innermost frames only record or hand out memory; none where all do."""
        names = (self.frame(number)[0] for number in self._stack_frames[start:end].tolist())
        return next((count for count, name in enumerate(names) if not PLUMBING.match(name)), 0)

    @cached_property
    def _is_user(self) -> Column:
        """A flag per frame."""
        files, inverse = np.unique(self._parts[1], return_inverse=True)
        flags: Column = np.array([not is_internal(self.text(file)) for file in files.tolist()], bool)[inverse]
        return flags

    @cached_property
    def _next_user(self) -> Column:
        """For each place in `stack_frames` the first one from it on that holds a frame of the user's."""
        count = len(self._stack_frames)
        own = np.where(self._is_user[self._stack_frames], np.arange(count), count)
        found: Column = np.minimum.accumulate(np.append(own, count)[::-1])[::-1]
        return found
