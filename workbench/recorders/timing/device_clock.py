"""Measure the duration of phases on a CUDA device with events; they are read later, so nothing waits for the device."""

from collections import defaultdict
from typing import TYPE_CHECKING

from workbench.recorders.timing.step_table import MemoryUse

if TYPE_CHECKING:
    from torch.cuda import Event


class Spans:
    """The CUDA events at the start and the end of each phase of one step; durations are read from them later.

    `spans` has a tuple (phase, start, end) for each phase, in the order in which the phases ended.
    """

    def __init__(self, spans: list[tuple[str, "Event", "Event"]]) -> None:
        self._spans = spans

    def ready(self) -> bool:
        """Return whether the device has reached the end of the last phase, so that all durations can be read."""
        # Events of one stream complete in order, so that the last one speaks for all.
        return all(end.query() for _, _, end in self._spans[-1:])  # type: ignore[no-untyped-call]

    def resolve(self) -> dict[str, int]:
        """Return {phase: nanoseconds on the device}; a phase whose end the device has not reached yet is omitted."""
        total: defaultdict[str, int] = defaultdict(int)
        for name, begin, end in self._spans:
            if end.query():  # type: ignore[no-untyped-call]
                total[name] += round(begin.elapsed_time(end) * 1e6)
        return dict(total)


class DeviceClock:
    """Records a CUDA event at the start and at the end of each phase, on the current stream.

    With `reset_peaks`, each call of `memory` resets the allocator's peaks, so that the next call returns the peaks
    since then. Without `reset_peaks`, peaks count from the start of the process. This is necessary if the script reads
    the peaks itself, because a reset would change them.
    """

    def __init__(self, *, reset_peaks: bool = True) -> None:
        self._reset_peaks = reset_peaks
        # Here and not above: the step recorder of a script on a CPU works without torch.
        import torch

        self._cuda = torch.cuda
        self._capacity = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        self._open: list[tuple[str, Event]] = []
        self._spans: list[tuple[str, Event, Event]] = []

    def begin(self, name: str) -> None:
        """Record the CUDA event at the start of phase `name`."""
        self._open.append((name, self._mark()))

    def end(self) -> None:
        """Record the CUDA event at the end of the phase that began last."""
        name, begin = self._open.pop()
        self._spans.append((name, begin, self._mark()))

    def take(self) -> Spans:
        """Return the CUDA events of all phases that ended since the last call of this method, as a `Spans`."""
        spans, self._spans = Spans(self._spans), []
        return spans

    def memory(self) -> MemoryUse:
        """Return peak memory, memory limit (bytes) and the number of allocation retries of the process.

        With `reset_peaks`, the peaks are those since the last call. All other values count from the start of the
        process.
        """
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
