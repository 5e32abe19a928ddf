"""How long do phases take on a CUDA device? Events are read once the device has passed them, without synchronising."""

from collections import defaultdict
from typing import TYPE_CHECKING

from workbench.recorders.timing.step_record import MemoryUse

if TYPE_CHECKING:
    from torch.cuda import Event


class Spans:
    """The events of one step's phases, in order: (name, begin, end)."""

    def __init__(self, spans: list[tuple[str, "Event", "Event"]]) -> None:
        self._spans = spans

    def ready(self) -> bool:
        """Return whether the device has passed the last event."""
        return all(end.query() for _, _, end in self._spans[-1:])  # type: ignore[no-untyped-call]

    def resolve(self) -> dict[str, int]:
        """Return the nanoseconds of each phase on the device, without spans whose end it has not reached yet."""
        total: defaultdict[str, int] = defaultdict(int)
        for name, begin, end in self._spans:
            if end.query():  # type: ignore[no-untyped-call]
                total[name] += round(begin.elapsed_time(end) * 1e6)
        return dict(total)


class DeviceClock:
    """Records a pair of events around each phase on the current stream.

    Without `reset_peaks` the peaks of memory are those since the start of the process: a script may read them too.
    """

    def __init__(self, *, reset_peaks: bool = True) -> None:
        self._reset_peaks = reset_peaks
        import torch

        self._cuda = torch.cuda
        self._capacity = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        self._open: list[tuple[str, Event]] = []
        self._spans: list[tuple[str, Event, Event]] = []

    def begin(self, name: str) -> None:
        """Mark the beginning of a phase in the device's queue."""
        self._open.append((name, self._mark()))

    def end(self) -> None:
        """Mark the end of the phase opened last."""
        name, begin = self._open.pop()
        self._spans.append((name, begin, self._mark()))

    def take(self) -> Spans:
        """Return the spans since the last call."""
        spans, self._spans = Spans(self._spans), []
        return spans

    def memory(self) -> MemoryUse:
        """Return the peaks of memory since the last call, the limit of them, and the retries since the start."""
        stats = self._cuda.memory_stats()
        if self._reset_peaks:
            self._cuda.reset_peak_memory_stats()
        allocated, reserved = (stats.get(f"{kind}_bytes.all.peak", 0) for kind in ("allocated", "reserved"))
        return {
            "memory_bytes": allocated,
            "reserved_bytes": reserved,
            "limit_bytes": int(self._capacity * self._cuda.get_per_process_memory_fraction()),
            "alloc_retries": stats.get("num_alloc_retries", 0),
        }

    def _mark(self) -> "Event":
        event: Event = self._cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event
