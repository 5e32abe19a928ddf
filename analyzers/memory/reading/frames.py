"""Look up the texts, frames and stacks of one snapshot by number, and find the user's own frames in a stack."""

import re
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from analyzers.columns import Column, Integers, Mask
from analyzers.frames import Origin, origin_of
from analyzers.memory.reading.operations import operation_of

Frame = tuple[str, str, int]
"""Function name, file, and line; the line is 0 if it is not known."""

# What captures the stack or hands memory out lies below the operation that asked for it: innermost where stacks="all".
ALLOCATOR_FRAME = re.compile(r"torch::(unwind|CapturedTraceback|cuda)::|c10::|at::(detail::|TensorBase )")


def is_internal(file: str) -> bool:
    """Return whether a file is PyTorch's, Python's or native code, which the user neither wrote nor chose."""
    return origin_of(file) <= Origin.RUNTIME


def frame_text(frame: Frame) -> str:
    """Return a frame as `file:line function`."""
    name, file, line = frame
    return f"{file or '??'}:{line} {name}" if file or line else name


class Frames:
    """The texts, frames and stacks of a snapshot by number, from the columns that `interning.InternTables` wrote.

    Stack 0 and text 0 are empty.
    """

    def __init__(self, columns: Mapping[str, Column]) -> None:
        # Plain views of memory-mapped columns are indexed ten times as fast as the memmap objects.
        self._text_end, self._text_bytes = (np.asarray(columns[name]) for name in ("text_end", "text_bytes"))
        self._stack_end, self._stack_frames = (np.asarray(columns[name]) for name in ("stack_end", "stack_frames"))
        self._name, self._file, self._line = (np.asarray(columns[f"frame_{key}"]) for key in ("name", "file", "line"))
        self._texts: dict[int, str] = {}
        self._frames: dict[int, Frame] = {}
        self._operations: dict[int, str] = {}

    def text(self, number: int) -> str:
        """Return the text with this number in the snapshot's table of texts."""
        if number not in self._texts:
            start = int(self._text_end[number - 1]) if number else 0
            content = self._text_bytes[start : int(self._text_end[number])].tobytes()
            self._texts[number] = content.decode("utf-8", "replace")
        return self._texts[number]

    def frame(self, number: int) -> Frame:
        """Return the frame with this number in the snapshot's table of distinct frames."""
        if number not in self._frames:
            name, file = self.text(int(self._name[number])), self.text(int(self._file[number]))
            self._frames[number] = name, file, int(self._line[number])
        return self._frames[number]

    def user_stack(self, stack: int) -> list[Frame]:
        """Return the user's frames of a stack, innermost first.

        If the stack has no frame of the user's, the result is a made-up frame that names what the stack does
        (`operation`, if known), then all frames but the innermost ones of the allocator and of the code that captures
        stacks.
        """
        start, end = self._bounds(stack)
        numbers = self._stack_frames[start:end]
        user = numbers[self._is_user[numbers]]
        if len(user):
            return [self.frame(number) for number in user.tolist()]
        native = [self.frame(number) for number in numbers[self._allocator_frames(start, end) :].tolist()]
        operation = self.operation(stack)
        return [(operation, "", 0), *native] if operation else native

    def operation(self, stack: int) -> str:
        """Return what PyTorch or a library did below the user's innermost frame, such as `backward of bmm`.

        The result is empty if the functions in the stack do not show it.
        """
        if stack not in self._operations:
            self._operations[stack] = operation_of(self.native_names(stack))
        return self._operations[stack]

    def native_names(self, stack: int) -> list[str]:
        """Return the names of the functions below the user's innermost frame, innermost first.

        For a stack without a frame of the user's, these are all of its functions.
        """
        start, end = self._bounds(stack)
        first = min(int(self._next_user[start]), end) if start < end else end
        return [self.frame(number)[0] for number in self._stack_frames[start:first].tolist()]

    def innermost(self, stack: int) -> Frame | None:
        """Return the innermost frame of the user's code in a stack; None for a stack without frames.

        If the user has no frame in it, the result is a made-up frame that names the stack's operation, such as
        `backward of bmm`. If that is unknown too, it is the innermost frame outside of the allocator.
        """
        start, end = self._bounds(stack)
        if start == end:
            return None
        first = int(self._next_user[start])
        if first >= end and (operation := self.operation(stack)):
            return operation, "", 0
        first = first if first < end else start + self._allocator_frames(start, end)
        return self.frame(int(self._stack_frames[first]))

    def line(self, stack: int) -> str:
        """Return the innermost frame of the user's code as `file:line function`; empty for a stack without frames.

        For a stack without a frame of the user's, see `innermost`.
        """
        frame = self.innermost(stack)
        return frame_text(frame) if frame else ""

    def _bounds(self, stack: int) -> tuple[int, int]:
        return int(self._stack_end[stack - 1]) if stack else 0, int(self._stack_end[stack])

    def _allocator_frames(self, start: int, end: int) -> int:
        """Return how many of a stack's innermost frames belong to the allocator or to the code that captures stacks.

        The result is 0 if all frames do. The stack is the part from `start` to `end` of the column `stack_frames`.
        """
        names = (self.frame(number)[0] for number in self._stack_frames[start:end].tolist())
        return next((count for count, name in enumerate(names) if not ALLOCATOR_FRAME.match(name)), 0)

    @cached_property
    def _is_user(self) -> Mask:
        """A mask of the distinct frames that are in the user's code.

        There are fewer files than frames, so each file is checked once.
        """
        files, inverse = np.unique(self._file, return_inverse=True)
        return np.array([not is_internal(self.text(file)) for file in files.tolist()], bool)[inverse]

    @cached_property
    def _next_user(self) -> Integers:
        """For each position in `stack_frames`, the first position at or after it whose frame is in the user's code."""
        count = len(self._stack_frames)
        user = np.where(self._is_user[self._stack_frames], np.arange(count), count)
        return np.minimum.accumulate(np.append(user, count)[::-1])[::-1]
