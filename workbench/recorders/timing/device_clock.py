"""Time of phases on a CUDA device, by events that are read once they have passed: never a synchronisation."""

from collections import defaultdict
from typing import Any


class Spans:
    """The events of one step's phases, in order: (name, begin, end)."""

    def __init__(self, found: list[tuple[str, Any, Any]]) -> None:
        self._found = found

    def ready(self) -> bool:
        """Whether the device has passed the last event."""
        return all(end.query() for _, _, end in self._found[-1:])

    def resolve(self) -> dict[str, int]:
        """Nanoseconds per phase; spans that the device has not passed are left out."""
        total: defaultdict[str, int] = defaultdict(int)
        for name, begin, end in self._found:
            if end.query():
                total[name] += round(begin.elapsed_time(end) * 1e6)
        return dict(total)


class DeviceClock:
    """Records a pair of events around each phase on the current stream."""

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda
        self._capacity = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        self._open: list[tuple[str, Any]] = []
        self._found: list[tuple[str, Any, Any]] = []

    def begin(self, name: str) -> None:
        """Mark the beginning of a phase in the device's queue."""
        self._open.append((name, self._mark()))

    def end(self) -> None:
        """Mark the end of the phase opened last."""
        name, begin = self._open.pop()
        self._found.append((name, begin, self._mark()))

    def take(self) -> Spans:
        """Hand over the spans since the last call."""
        spans, self._found = Spans(self._found), []
        return spans

    def memory(self) -> dict[str, int | None]:
        """Highest allocated and reserved bytes since the last call, what they may rise to, retries since the start."""
        stats = self._cuda.memory_stats()
        self._cuda.reset_peak_memory_stats()
        allocated, reserved = (stats.get(f"{kind}_bytes.all.peak", 0) for kind in ("allocated", "reserved"))
        return {
            "memory_bytes": allocated,
            "reserved_bytes": reserved,
            "limit_bytes": int(self._capacity * self._cuda.get_per_process_memory_fraction()),
            "alloc_retries": stats.get("num_alloc_retries", 0),
        }

    def _mark(self) -> Any:
        event: Any = self._cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event
