"""The profiler's real allocation events of a session, with the stacks they happened in."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch._C._profiler import _EventType

Frame = dict[str, Any]
Path = tuple[Any, Any] | None  # (outer path, event): inner parts share their outer ones


class Allocation(NamedTuple):
    """`size` bytes came (> 0) or went (< 0) at `address`; `frames` innermost first, shared between events."""

    time_ns: int
    address: int
    size: int
    frames: list[Frame]


class Span(NamedTuple):
    """A named stretch of the optimizer's, which PyTorch marks by itself."""

    name: str
    begin_ns: int
    end_ns: int


class Frames:
    """Interns frames and stacks, so that a snapshot holds each only once."""

    def __init__(self) -> None:
        self._frames: dict[tuple[str, str, int], Frame] = {}
        self._stacks: dict[tuple[int, ...], list[Frame]] = {}

    def frame(self, name: str, filename: str, line: int) -> Frame:
        """The one dict for a place in the code."""
        return self._frames.setdefault((name, filename, line), {"name": name, "filename": filename, "line": line})

    def stack(self, frames: list[Frame]) -> list[Frame]:
        """The one list for a stack."""
        return self._stacks.setdefault(tuple(map(id, frames)), frames)


class Session:
    """What a stopped profiler has seen: allocations of the CPU and spans of the optimizer, each in order of time."""

    def __init__(self, profiler: torch.profiler.profile, frames: Frames) -> None:
        self.allocations: list[Allocation] = []
        self.spans: list[Span] = []
        self._frames = frames
        self._stacks: dict[int, tuple[Path, list[Frame]]] = {}  # holds the path: its identity stays its own
        results: Any = profiler.profiler.kineto_results  # type: ignore[union-attr]
        self._walk(results.experimental_event_tree())
        self.allocations.sort(key=lambda found: found.time_ns)
        self.spans.sort(key=lambda span: span.begin_ns)

    def _walk(self, roots: list[Any]) -> None:
        pending: list[tuple[Any, Path]] = [(root, None) for root in roots]
        while pending:
            event, path = pending.pop()
            if event.tag == _EventType.Allocation:
                self._add(event, path)
                continue
            if event.tag in (_EventType.PyCall, _EventType.PyCCall, _EventType.TorchOp):
                path = (path, event)
                self._note_span(event)
            pending.extend((child, path) for child in event.children)

    def _add(self, event: Any, path: Path) -> None:
        fields = event.extra_fields
        if fields.device.type == "cpu":
            self.allocations.append(Allocation(event.start_time_ns, fields.ptr, fields.alloc_size, self._stack(path)))

    def _note_span(self, event: Any) -> None:
        if event.tag == _EventType.TorchOp and event.name.startswith("Optimizer."):
            self.spans.append(Span(event.name, event.start_time_ns, event.end_time_ns))

    def _stack(self, path: Path) -> list[Frame]:
        known = self._stacks.get(id(path))
        if known is None:
            known = self._stacks[id(path)] = path, self._frames.stack(list(self._unwind(path)))
        return known[1]

    def _unwind(self, path: Path) -> Iterator[Frame]:
        """Innermost first. The line at which a Python frame stands is known only to the call below it."""
        innermost = True
        while path is not None:
            path, event = path
            if event.tag == _EventType.TorchOp:
                if not event.name.startswith("ProfilerStep#"):  # it would make every step's stacks differ
                    yield self._frames.frame(event.name, "", 0)
                continue
            fields = event.extra_fields
            places = [fields.callsite] if innermost and event.tag == _EventType.PyCall else []
            for place in (*places, fields.caller):
                with suppress(UnicodeDecodeError):  # a file name may dangle in torch 2.13
                    yield self._frames.frame(place.function_name, place.file_name, place.line_number)
            innermost = False
