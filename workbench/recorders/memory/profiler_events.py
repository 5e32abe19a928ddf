"""Which allocations did a profiler session see, and in which stacks?"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import torch
from torch._C._profiler import _EventType

from workbench.recorders.memory.snapshot import Frame


class ProfilerEvent(Protocol):
    """What this module reads of the events of PyTorch's profiler, whose type stubs lack them."""

    tag: _EventType
    name: str
    start_time_ns: int
    end_time_ns: int
    extra_fields: Any
    children: list["ProfilerEvent"]


Path = tuple[Any, ProfilerEvent] | None
"""(outer path, event): paths of inner events share those of outer ones."""


class Allocation(NamedTuple):
    """`size` bytes were allocated (> 0) or freed (< 0) at `address`.

    Frames are innermost first, shared between events.
    """

    time_ns: int
    address: int
    size: int
    frames: list[Frame]


class Span(NamedTuple):
    """A time interval of an optimizer call, such as `Optimizer.step`, which PyTorch records without being asked."""

    name: str
    begin_ns: int
    end_ns: int


class FrameTable:
    """Holds each frame and each stack once, so that a snapshot stays small."""

    def __init__(self) -> None:
        self._frames: dict[tuple[str, str, int], Frame] = {}
        self._stacks: dict[tuple[int, ...], list[Frame]] = {}

    def frame(self, name: str, filename: str, line: int) -> Frame:
        """Return the one dict for a source line."""
        return self._frames.setdefault((name, filename, line), {"name": name, "filename": filename, "line": line})

    def stack(self, frames: list[Frame]) -> list[Frame]:
        """Return the one list for a stack."""
        return self._stacks.setdefault(tuple(map(id, frames)), frames)


class ProfilerSession:
    """Allocations on the CPU and spans of the optimizer that a stopped profiler has seen, each in order of time."""

    def __init__(self, profiler: torch.profiler.profile, frames: FrameTable) -> None:
        self.allocations: list[Allocation] = []
        self.spans: list[Span] = []
        self._frames = frames
        self._stacks: dict[int, tuple[Path, list[Frame]]] = {}  # holds the path: its identity stays its own
        results: Any = profiler.profiler.kineto_results  # type: ignore[union-attr]
        self._walk(results.experimental_event_tree())
        self.allocations.sort(key=lambda found: found.time_ns)
        self.spans.sort(key=lambda span: span.begin_ns)

    def _walk(self, roots: list[ProfilerEvent]) -> None:
        pending: list[tuple[ProfilerEvent, Path]] = [(root, None) for root in roots]
        while pending:
            event, path = pending.pop()
            if event.tag == _EventType.Allocation:
                self._add(event, path)
                continue
            if event.tag in (_EventType.PyCall, _EventType.PyCCall, _EventType.TorchOp):
                path = (path, event)
                self._add_span(event)
            pending.extend((child, path) for child in event.children)

    def _add(self, event: ProfilerEvent, path: Path) -> None:
        fields = event.extra_fields
        if fields.device.type == "cpu":
            self.allocations.append(Allocation(event.start_time_ns, fields.ptr, fields.alloc_size, self._stack(path)))

    def _add_span(self, event: ProfilerEvent) -> None:
        if event.tag == _EventType.TorchOp and event.name.startswith("Optimizer."):
            self.spans.append(Span(event.name, event.start_time_ns, event.end_time_ns))

    def _stack(self, path: Path) -> list[Frame]:
        known = self._stacks.get(id(path))
        if known is None:
            known = self._stacks[id(path)] = path, self._frames.stack(list(self._unwind(path)))
        return known[1]

    def _unwind(self, path: Path) -> Iterator[Frame]:
        """Yield the frames of a stack, innermost first.

        Only the call below a Python frame knows at which line it stands.
        """
        innermost = True
        while path is not None:
            path, event = path
            if event.tag == _EventType.TorchOp:
                if not event.name.startswith("ProfilerStep#"):  # it would make every step's stacks differ
                    yield self._frames.frame(event.name, "", 0)
                continue
            fields = event.extra_fields
            locations = [fields.callsite] if innermost and event.tag == _EventType.PyCall else []
            for location in (*locations, fields.caller):
                with suppress(UnicodeDecodeError):  # a file name may dangle in torch 2.13
                    yield self._frames.frame(location.function_name, location.file_name, location.line_number)
            innermost = False
