"""Make a console table of the time of a step by phase, from the lines of the step log."""

from collections import deque
from collections.abc import Iterator
from statistics import fmean, median
from typing import NamedTuple, TypedDict


class MemoryUse(TypedDict):
    """The fields about memory: peaks and limit in bytes, and the number of allocation retries.

    On a CPU, the peaks are peaks of the process's resident memory.
    """

    memory_bytes: int
    reserved_bytes: int
    limit_bytes: int | None
    alloc_retries: int


class StepRecord(MemoryUse):
    """A line of rank R's `steps/rank_R.jsonl`; times are in ns.

    `residual_ns` is the time of the step outside all phases.
    """

    step: int
    start_ns: int
    dur_ns: int
    phases: dict[str, int]
    cpu_ns: dict[str, int]
    device_ns: dict[str, int]
    residual_ns: int
    tokens: int
    loss: float | str | None
    local_loss: float | str | None
    grad_norm: float | str | None
    tags: list[str]
    seqs: dict[str, int]


_MAX_STEPS = 10_000
"""The number of steps that are kept; older ones are dropped, so that the memory of a long run does not grow."""
_SPECIAL_TAGS = frozenset(("first", "compile", "profile", "snapshot"))
"""The tags of steps that take longer than usual and are left out of the table."""
OTHER, STEP = "other", "step"
MS = 1e6


class Row(NamedTuple):
    """A row of the table: the times of one phase over several steps, in ms.

    Median, mean and largest time are wall-clock times. `processor_ms` is the mean CPU time, and `device_ms` the mean
    time on the device; each is None if it was not measured.
    """

    name: str
    median_ms: float
    mean_ms: float
    largest_ms: float
    processor_ms: float | None
    device_ms: float | None


class StepTable:
    """Collects steps from the step log; `table` summarises the steps since its last call."""

    def __init__(self) -> None:
        self._steps: deque[StepRecord] = deque(maxlen=_MAX_STEPS)

    def add(self, line: StepRecord) -> None:
        """Add a finished line of the step log, unless a tag says that the step was slower than usual."""
        if not _SPECIAL_TAGS.intersection(line["tags"]):
            self._steps.append(line)

    def table(self) -> str:
        """Return a text table of the collected steps, and delete the steps.

        The table has a row per phase, longest first. The last two rows are "other", the time outside all phases, and
        "step", the whole step.
        """
        if not self._steps:
            return "Timing breakdown: no step but first, profiled or snapshot ones"
        first, last, count = self._steps[0]["step"], self._steps[-1]["step"], len(self._steps)
        rows = list(self.rows())
        mean_step_ms = rows[-1].mean_ms
        lines = [f"Timing breakdown of {count} steps from {first} to {last}, in ms:", HEAD]
        lines += [_format_row(row, row.mean_ms / mean_step_ms if mean_step_ms else 0.0) for row in rows]
        self._steps.clear()
        return "\n".join(lines)

    def rows(self) -> Iterator[Row]:
        """Yield a row per phase, longest mean first, then "other" (time outside all phases) and "step"."""
        names = dict.fromkeys(name for line in self._steps for name in line["phases"])
        yield from sorted((self._row(name) for name in names), key=lambda row: -row.mean_ms)
        yield _row_of(OTHER, [line["residual_ns"] for line in self._steps])
        yield _row_of(STEP, [line["dur_ns"] for line in self._steps])

    def _row(self, name: str) -> Row:
        wall = [line["phases"].get(name, 0) for line in self._steps]
        cpu = [line["cpu_ns"].get(name, 0) for line in self._steps]
        device = [line["device_ns"].get(name, 0) for line in self._steps]
        row = _row_of(name, wall)
        return row._replace(processor_ms=fmean(cpu) / MS, device_ms=fmean(device) / MS if any(device) else None)


HEAD = f"  {'component':<12}{'median':>10}{'mean':>10}{'largest':>10}{'share':>8}{'processor':>11}{'device':>10}"


def _row_of(name: str, ns: list[int]) -> Row:
    """Return a row with wall-clock times only; `ns` has the durations of phase `name`, one per step, in nanoseconds."""
    return Row(name, median(ns) / MS, fmean(ns) / MS, max(ns) / MS, None, None)


def _format_row(row: Row, share: float) -> str:
    """Return a row as text; `share` is the phase's fraction of the mean step time."""
    times = "".join(f"{value:>10.3f}" for value in (row.median_ms, row.mean_ms, row.largest_ms))
    processor, device = ("-" if value is None else f"{value:.3f}" for value in (row.processor_ms, row.device_ms))
    return f"  {row.name:<12}{times}{share:>8.1%}{processor:>11}{device:>10}"
