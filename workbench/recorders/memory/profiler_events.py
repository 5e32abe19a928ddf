"""Read the allocations in a profiler session, with their call stacks."""

from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import torch
from torch._C._profiler import _EventType

from workbench.recorders.memory.snapshot import Frame


class ProfilerEvent(Protocol):
    """The fields of PyTorch's profiler events that are used here; PyTorch's type stubs lack them."""

    tag: _EventType
    name: str
    start_time_ns: int
    end_time_ns: int
    extra_fields: Any
    children: list["ProfilerEvent"]


Path = tuple[Any, ProfilerEvent, str | None] | None
"""A call path as a linked list, innermost call first.

It is (path of the outer calls, event, name of the operation or None); None is the empty path. Paths share their outer
parts.
"""


_PY_CALL = _EventType.PyCall
_CALLS = frozenset(kind.value for kind in (_EventType.PyCall, _EventType.PyCCall, _EventType.TorchOp))
"""The kinds of profiler event that are calls, and so become frames of a stack."""


class Allocation(NamedTuple):
    """An allocation of `size` bytes at `address`; a negative size means a free.

    `frames` is the call stack, innermost frame first; allocations with the same stack share one list object.
    """

    time_ns: int
    address: int
    size: int
    frames: list[Frame]


class Span(NamedTuple):
    """The time interval of a call that PyTorch's profiler records without being asked, such as `Optimizer.step`."""

    name: str
    begin_ns: int
    end_ns: int


class FrameTable:
    """Stores each distinct frame and each distinct stack only once, so that a snapshot stays small."""

    def __init__(self) -> None:
        self._frames: dict[tuple[str, str, int], Frame] = {}
        self._stacks: dict[tuple[int, ...], list[Frame]] = {}

    def frame(self, name: str, filename: str, line: int) -> Frame:
        """Return the dict of a source line; equal lines share one dict object."""
        key = name, filename, line
        if key not in self._frames:
            self._frames[key] = {"name": name, "filename": filename, "line": line}
        return self._frames[key]

    def stack(self, frames: list[Frame]) -> list[Frame]:
        """Return a list with these frames; equal stacks share one list object."""
        return self._stacks.setdefault(tuple(map(id, frames)), frames)


class ProfilerSession:
    """The CPU allocations and optimizer calls that a stopped profiler has recorded, each list in the order of time."""

    def __init__(self, profiler: torch.profiler.profile, frames: FrameTable) -> None:
        self.allocations: list[Allocation] = []
        self.spans: list[Span] = []
        self._frames = frames
        self._stacks: dict[int, tuple[Path, list[Frame]]] = {}  # holds the path: its identity stays its own
        self._innermost: dict[int, tuple[Path, tuple[Frame, ...]]] = {}
        self._outer: dict[int, tuple[Path, tuple[Frame, ...]]] = {}
        results: Any = profiler.profiler.kineto_results  # type: ignore[union-attr]
        self._walk(results.experimental_event_tree())
        self.allocations.sort(key=lambda found: found.time_ns)
        self.spans.sort(key=lambda span: span.begin_ns)

    def _walk(self, roots: list[ProfilerEvent]) -> None:
        # Sessions have a hundred thousand events: comparing enums and calling functions for each would take a second.
        allocation, operation, called = _EventType.Allocation.value, _EventType.TorchOp.value, _CALLS
        pending: list[tuple[list[ProfilerEvent], Path]] = [(roots, None)]
        while pending:
            events, path = pending.pop()
            for event in events:
                tag = event.tag.value
                if tag == allocation:
                    self._add(event, path)
                    continue
                name = event.name if tag == operation else None
                if name and name.startswith("Optimizer."):
                    self.spans.append(Span(name, event.start_time_ns, event.end_time_ns))
                if children := event.children:
                    pending.append((children, (path, event, name) if tag in called else path))

    def _add(self, event: ProfilerEvent, path: Path) -> None:
        fields = event.extra_fields
        if fields.device.type == "cpu":
            self.allocations.append(Allocation(event.start_time_ns, fields.ptr, fields.alloc_size, self._stack(path)))

    def _stack(self, path: Path) -> list[Frame]:
        """Return the frames of the profiler events in `path`, innermost first; equal paths share one list object.

        A path is the chain of nested calls that led to an allocation.
        """
        known = self._stacks.get(id(path))
        if known is None:
            known = self._stacks[id(path)] = path, self._frames.stack(self._unwind(path))
        return known[1]

    def _unwind(self, path: Path) -> list[Frame]:
        """Return the frames of a chain of nested calls (`path`), innermost first; `_stack` caches the result."""
        frames: list[Frame] = []
        # Operations come before the innermost Python frame, the only one whose own line is known.
        while path is not None and path[2] is not None:
            frames += self._operation(path[2])
            path = path[0]
        return [*frames, *self._python_frames(path)]

    def _python_frames(self, path: Path) -> tuple[Frame, ...]:
        """Return the frames of a path whose last call is a Python call, innermost first; the result is cached.

        The cache is useful because one Python function calls many operations that allocate memory.
        """
        if path is None:
            return ()
        if id(path) not in self._innermost:
            own = self._called(path[1], innermost=True)
            self._innermost[id(path)] = path, (*own, *self._outer_frames(path[0]))
        return self._innermost[id(path)][1]

    def _outer_frames(self, path: Path) -> tuple[Frame, ...]:
        """Return the frames of a path, innermost first; the frame for each Python call has the line of its caller.

        The frames of each path are cached, because many stacks have the same outer calls.
        """
        missing: list[Path] = []
        while path is not None and id(path) not in self._outer:
            missing.append(path)
            path = path[0]
        frames = self._outer[id(path)][1] if path is not None else ()
        for inner in reversed(missing):
            assert inner
            own = self._called(inner[1], innermost=False) if inner[2] is None else self._operation(inner[2])
            frames = (*own, *frames)
            self._outer[id(inner)] = inner, frames
        return frames

    def _operation(self, name: str) -> list[Frame]:
        """Return a list with the frame of the PyTorch operation `name`.

        The list is empty for the span `ProfilerStep#N`: this name differs in each step, so the stacks of all steps
        would differ too.
        """
        return [] if name.startswith("ProfilerStep#") else [self._frames.frame(name, "", 0)]

    def _called(self, event: ProfilerEvent, *, innermost: bool) -> list[Frame]:
        """Return a list with the frame that called `event`, at the line of the call.

        If `innermost` is set and the event is a call of a Python function, the frame of the called function comes
        first. Outer functions need no such frame: the event of the call inside them has their current line.
        """
        fields, frames = event.extra_fields, []
        locations = (fields.callsite, fields.caller) if innermost and event.tag == _PY_CALL else (fields.caller,)
        for location in locations:
            with suppress(UnicodeDecodeError):  # a file name may dangle in torch 2.13
                frames.append(self._frames.frame(location.function_name, location.file_name, location.line_number))
        return frames
