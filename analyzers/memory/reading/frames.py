"""Look up a snapshot's texts, frames and stacks by index, and find the user's own frames in a stack."""

import re
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from analyzers.columns import Column, Mask
from analyzers.frames import Origin, origin_of
from analyzers.memory.reading.operations import operation_of

Frame = tuple[str, str, int]
"""A stack frame: function name, file, and line number (0 if not known)."""

# What captures the stack or hands memory out lies below the operation that asked for it: innermost where stacks="all".
_ALLOCATOR_FRAME = re.compile(r"torch::(unwind|CapturedTraceback|cuda)::|c10::|at::(detail::|TensorBase )")


def _is_internal(file: str) -> bool:
    """Return whether a file belongs to PyTorch, to Python or to native code, so that its frames are not the user's."""
    return origin_of(file) <= Origin.RUNTIME


def frame_text(frame: Frame) -> str:
    """Return a frame as `file:line function`, or only the function's name if neither file nor line is known."""
    name, file, line = frame
    return f"{file or '??'}:{line} {name}" if file or line else name


class Frames:
    """Look-up tables for the texts, frames and stacks of a snapshot, which the snapshot's columns refer to by index.

    Text 0 is the empty text, and stack 0 is a stack without frames. `interning.InternTables` wrote the tables.
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
        """Return the text at this index of the snapshot's table of distinct texts; index 0 is the empty text."""
        if number not in self._texts:
            start = int(self._text_end[number - 1]) if number else 0
            content = self._text_bytes[start : int(self._text_end[number])].tobytes()
            self._texts[number] = content.decode("utf-8", "replace")
        return self._texts[number]

    def frame(self, number: int) -> Frame:
        """Return the frame at this index of the snapshot's table of distinct frames."""
        if number not in self._frames:
            name, file = self.text(int(self._name[number])), self.text(int(self._file[number]))
            self._frames[number] = name, file, int(self._line[number])
        return self._frames[number]

    def user_stack(self, stack: int) -> list[Frame]:
        """Return the frames of a stack that are in the user's code, innermost first.

        If there are none, return a made-up frame that names the operation, such as `backward of bmm` (left out if the
        operation is not known), and then the frames of the stack. The innermost frames, in which the allocator gets the
        memory and PyTorch captures the stack, are left out.
        """
        start, end = self._bounds(stack)
        numbers = self._stack_frames[start:end]
        user = numbers[self._is_user[numbers]]
        if len(user):
            return [self.frame(number) for number in user.tolist()]
        native = [self.frame(number) for number in numbers[self._allocator_frames(start, end) :].tolist()]
        operation = self.operation(stack)
        return [(operation, "", 0), *native] if operation else native

    def whole_stack(self, stack: int) -> list[Frame]:
        """Return all frames of a stack, including those in libraries, innermost first."""
        start, end = self._bounds(stack)
        return [self.frame(number) for number in self._stack_frames[start:end].tolist()]

    def has_user_line(self, stack: int) -> bool:
        """Return whether a frame of the stack is in the user's code."""
        start, end = self._bounds(stack)
        return bool(self._is_user[self._stack_frames[start:end]].any())

    def operation(self, stack: int) -> str:
        """Return the operation that the user's innermost frame called in PyTorch or a library: `backward of bmm`.

        The result is an empty text if the function names in the stack do not show an operation.
        """
        if stack not in self._operations:
            self._operations[stack] = operation_of(self.native_names(stack))
        return self._operations[stack]

    def native_names(self, stack: int) -> list[str]:
        """Return the names of the functions that run inside the user's innermost frame, innermost first.

        If no frame of the stack is in the user's code, return the names of all its functions.
        """
        start, end = self._bounds(stack)
        first = self._first_user(start, end)
        return [self.frame(number)[0] for number in self._stack_frames[start:first].tolist()]

    def innermost(self, stack: int) -> Frame | None:
        """Return the innermost frame of a stack that is in the user's code; None for a stack without frames.

        If no frame is in the user's code, return a made-up frame that names the operation, such as `backward of bmm`;
        if the operation is not known either, return the innermost frame outside of the allocator.
        """
        start, end = self._bounds(stack)
        if start == end:
            return None
        first = self._first_user(start, end)
        if first >= end and (operation := self.operation(stack)):
            return operation, "", 0
        first = first if first < end else start + self._allocator_frames(start, end)
        return self.frame(int(self._stack_frames[first]))

    def line(self, stack: int) -> str:
        """Return the result of `innermost` as `file:line function`; an empty text for a stack without frames."""
        frame = self.innermost(stack)
        return frame_text(frame) if frame else ""

    def _bounds(self, stack: int) -> tuple[int, int]:
        return int(self._stack_end[stack - 1]) if stack else 0, int(self._stack_end[stack])

    def _allocator_frames(self, start: int, end: int) -> int:
        """Return how many of a stack's innermost frames belong to the allocator or to the code that captures stacks.

        If all frames do, the result is 0. The stack's frames are at the positions `start` to `end` of the column
        `stack_frames`.
        """
        names = (self.frame(number)[0] for number in self._stack_frames[start:end].tolist())
        return next((count for count, name in enumerate(names) if not _ALLOCATOR_FRAME.match(name)), 0)

    @cached_property
    def _is_user(self) -> Mask:
        """For each distinct frame, whether it is in the user's code.

        Each file is checked once, because there are fewer files than frames.
        """
        files, inverse = np.unique(self._file, return_inverse=True)
        return np.array([not _is_internal(self.text(file)) for file in files.tolist()], bool)[inverse]

    def _first_user(self, start: int, end: int) -> int:
        """Return the first position from `start` on whose frame in `stack_frames` is the user's; else `end`."""
        found = np.flatnonzero(self._is_user[self._stack_frames[start:end]])
        return start + int(found[0]) if len(found) else end
