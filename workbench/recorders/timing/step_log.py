"""Write the step log, a JSON line per step with the time of each phase, the loss, the tokens and other values.

In any training script:

    steps = StepRecorder("outputs")
    with steps.step(n) as line:  ...  with steps.phase("fwd"): ...  line.update(tokens=..., loss=...)
"""

import functools
import json
import math
import resource
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import ContextDecorator, contextmanager
from pathlib import Path
from time import perf_counter_ns, process_time_ns, time_ns
from types import MappingProxyType
from typing import TYPE_CHECKING

from workbench.recorders import automatic
from workbench.recorders.files import RankInfo
from workbench.recorders.hang.heartbeat import DONE, Heartbeat
from workbench.recorders.memory.limits import memory_room
from workbench.recorders.own_files import Backlog, OwnFile, note_failure
from workbench.recorders.timing.garbage import Collections
from workbench.recorders.timing.step_table import MemoryUse, StepRecord, StepTable

if TYPE_CHECKING:
    from torch.cuda import Event


BETWEEN = "between"
_RESIDUAL = "step"
_MEMORY_INTERVAL_NS = 20_000_000
_CLOCK_INTERVAL_NS, _CLOCK_INTERVAL_AT_MOST_NS, _CLOCK_SHARE = 4_000_000, 50_000_000, 1000
"""The CPU clock, a system call that visits all threads, is read in the phases of one step per such interval.

So it is read in each step that is as long; where it takes long, less often, as a step has some five readings, which
shall take half a percent of the time. The phases of other steps get the share of the CPU that they had in the last one
that was measured, unless they take longer than `_LONG_PHASE_NS`.
"""
_LONG_PHASE_NS = 1_000_000
_LINE_INTERVAL_S = 0.02
_LINE_BURST = 5
"""Steps that are shorter than 20 ms are written together, once there have been five of them in a row."""
# `ru_maxrss` is in bytes on macOS and in KiB on Linux.
PAGE = 1 if sys.platform == "darwin" else 1024


def _json_number(value: float | None) -> float | str | None:
    """Return a number as JSON can represent it: NaN and infinities become the strings "nan", "inf" and "-inf"."""
    return value if value is None or math.isfinite(value) else str(float(value))


class StepLine:
    """The values of a step: those that the training loop sets while it runs, such as the loss, and what is measured."""

    tokens = 0
    loss: float | None = None
    local_loss: float | None = None
    grad_norm: float | None = None
    seqs: Mapping[str, int] = MappingProxyType({})

    device_ns: Mapping[str, int] = MappingProxyType({})
    start_ns = dur_ns = 0
    memory: MemoryUse | None = None

    def __init__(self, step: int) -> None:
        self.step = step
        self.tags: list[str] = []
        self.phases: dict[str, int] = {}
        self.cpu_ns: dict[str, int] = {}

    def update(
        self,
        *,
        tokens: int | None = None,
        loss: float | None = None,
        local_loss: float | None = None,
        grad_norm: float | None = None,
    ) -> None:
        """Store the given values, which are Python numbers, in this line of the step log.

        `tokens` and `local_loss` belong to this rank only. `loss` is the mean of all ranks, and `grad_norm` is the norm
        of the gradients.
        """
        self.tokens = self.tokens if tokens is None else tokens
        self.loss = self.loss if loss is None else loss
        self.local_loss = self.local_loss if local_loss is None else local_loss
        self.grad_norm = self.grad_norm if grad_norm is None else grad_norm

    def tag(self, name: str) -> None:
        """Mark the step with a tag: first, gc, eval, checkpoint, profile, snapshot or compile."""
        if name not in self.tags:
            self.tags.append(name)


class StepRecorder:
    """Writes the step log `steps/rank_R.jsonl` and the heartbeat `steps/heartbeat_R.bin` of rank R below `folder`.

    The heartbeat has the current step and phase of the rank. If the table `timing` is given, each finished step is
    added to it. A failure to write is noted on stderr, and the script continues.

    Wall-clock and CPU time are measured of each phase; if phases are nested, the innermost gets the time. Example: a
    step of 10 ms contains fwd of 6 ms, which contains gc of 2 ms. Then fwd counts 4 ms, gc 2 ms, and the remaining time
    of the step (residual) is 4 ms.
    """

    def __init__(
        self, folder: str | Path, *, device: str = "cpu", timing: StepTable | None = None, reset_peaks: bool = True
    ) -> None:
        rank_info = RankInfo.here()
        self.timing = timing
        folder_of_logs = Path(folder) / "steps"
        self.heartbeat = Heartbeat(folder_of_logs / f"heartbeat_{rank_info.rank}.bin")
        self._file = OwnFile(folder_of_logs / f"rank_{rank_info.rank}.jsonl", append=True)
        # The log of a killed rank has all of its finished steps, unless they were very short.
        self._lines: deque[StepLine] = deque()
        self._backlog = Backlog(self._write_lines, interval_s=_LINE_INTERVAL_S, burst=_LINE_BURST)
        self._device = DeviceClock(reset_peaks=reset_peaks) if device == "cuda" else None
        self._memory = ProcessMemory()
        # The names of the open phases, outermost first; the first is `_RESIDUAL` within a step.
        self._open: list[str] = []
        self._wall_mark = self._cpu_mark = 0
        # Whether the CPU clock is read at each beginning and end of a phase in this step, and of which phase it was
        # read how much CPU a nanosecond takes.
        self._is_measured, self._next_measured_ns = True, 0
        self._cpu_share: dict[str, float] = {}
        self._waiting: list[tuple[StepLine, Spans]] = []
        self.current_step = 0
        self._started = 0
        self._line = StepLine(0)
        self._thread, self._garbage = threading.get_ident(), Collections()
        self._file.append(json.dumps(header(rank_info, device), separators=(",", ":")).encode() + b"\n")
        self.heartbeat.beat(0, "init")
        automatic.give_way_to_steps(self)

    @property
    def current_phase(self) -> str:
        """The name of the innermost open phase; between two steps, a name that says that no step is running."""
        return self._open[-1] if self._open else BETWEEN

    @property
    def finished_step(self) -> int:
        """The number of the last step that has ended."""
        return self.current_step - bool(self._open)

    @contextmanager
    def step(self, step: int) -> Iterator[StepLine]:
        """Record a step inside this context, which yields the `StepLine` for the loss and other values.

        If an exception ends the step, no line is written to the step log, and the heartbeat keeps the phase in which
        the exception was raised.
        """
        line = self.begin_step(step)
        yield line
        self.end_step()
        self.heartbeat.beat(step, BETWEEN)

    def begin_step(self, step: int) -> StepLine:
        """Begin a step, like `step` but without a context; call `end_step` afterwards."""
        self._line = line = StepLine(step)
        self.current_step = step
        self._open = [_RESIDUAL]
        self.heartbeat.beat(step, _RESIDUAL)
        line.start_ns, self._started = time_ns(), perf_counter_ns()
        self._is_measured = self._started >= self._next_measured_ns
        if self._is_measured:
            self._cpu_mark = process_time_ns()
            pause = _CLOCK_SHARE * (perf_counter_ns() - self._started)
            self._next_measured_ns = self._started + min(max(pause, _CLOCK_INTERVAL_NS), _CLOCK_INTERVAL_AT_MOST_NS)
        return line

    def end_step(self) -> None:
        """End the step that began last; the heartbeat is left to the caller, which may begin the next step at once."""
        ended, line = perf_counter_ns(), self._line
        if self._garbage.times:
            self._charge_collections()
        line.dur_ns = ended - self._started
        del self._open[-1:]  # an exception in the middle of our code may have left none
        if self._device is None:
            memory = self._memory
            line.memory = memory.use if ended < memory.next_ns else memory.read(ended)
            self._write_step(line)
        else:
            line.memory = self._device.memory()
            self._waiting.append((line, self._device.take()))
            self._flush(last=False)

    def phase(self, name: str) -> "Phase":
        """Record the time inside this context as phase `name`; phases inside this phase do not count for it."""
        return Phase(self, name)

    def begin_phase(self, name: str) -> None:
        """Begin phase `name`, like `phase` but without a context; call `end_phase` afterwards."""
        wall, phases = perf_counter_ns(), self._open
        # The residual is not measured, as it follows from the others.
        if len(phases) > 1:
            self._charge(wall)
        else:
            if self._is_measured:
                self._cpu_mark = process_time_ns()
            if self._garbage.times:
                self._charge_collections()
        phases.append(name)
        self._wall_mark = wall
        self.heartbeat.beat(self.current_step, name)
        if self._device:
            self._device.begin(name)

    def end_phase(self, *, step_ends: bool = False) -> None:
        """End the phase that began last; `step_ends` says that the step ends too, so that no heartbeat is needed."""
        phases = self._open
        if self._device:
            self._device.end()
        wall = perf_counter_ns()
        self._charge(wall)
        del phases[-1:]
        self._wall_mark = wall
        if not step_ends:
            # Mostly another phase or the next step follows at once.
            self.heartbeat.beat_soon(self.current_step, phases[-1] if phases else BETWEEN)

    def breakdown(self, *, last: bool) -> str | None:
        """Return a text table of the steps since the last table; None if the recorder has no `timing` table.

        The call never waits for the device. With `last`, steps whose device times are incomplete are included.
        """
        self._flush(last=last)
        return self.timing.table() if self.timing else None

    def stop(self) -> None:
        """Write the steps that waited for device times, and close the step log without recording a clean end.

        The heartbeat keeps the last phase. `close`, in contrast, writes that the rank has ended.
        """
        self._garbage.stop()
        self._flush(last=True)
        self._backlog.flush()
        self._file.close()
        self.heartbeat.flush()

    def close(self) -> None:
        """Write the steps that waited for device times, close the step log, and record a clean end."""
        self.stop()
        self.heartbeat.beat(self.current_step, DONE)
        self.heartbeat.flush()

    def _charge(self, wall: int) -> None:
        """Add the time since the last phase began or ended to the innermost open phase; `wall` is the time now."""
        # A collection of garbage may come between two steps.
        if not self._open or self._open[0] is not _RESIDUAL:
            return
        name, line = self._open[-1], self._line
        spent = wall - self._wall_mark
        if self._is_measured or spent > _LONG_PHASE_NS:
            cpu = process_time_ns()
            spent_cpu, self._cpu_mark = cpu - self._cpu_mark, cpu
            if not self._is_measured:
                # The mark before is older than the phase, by some milliseconds.
                spent_cpu = min(spent_cpu, int(spent * max(self._cpu_share.get(name, 1.0), 1.0)))
                self._is_measured = True
            elif spent:
                self._cpu_share[name] = spent_cpu / spent
        else:
            spent_cpu = int(spent * self._cpu_share.get(name, 1.0))
        if self._garbage.times and (collecting := self._charge_collections()):
            spent, spent_cpu = max(0, spent - collecting), max(0, spent_cpu - collecting)
        line.phases[name] = line.phases.get(name, 0) + spent
        line.cpu_ns[name] = line.cpu_ns.get(name, 0) + spent_cpu

    def _charge_collections(self) -> int:
        """Count full garbage collections of this step, in the thread that trains, as phase `gc`; return their ns."""
        spent, line = self._garbage.take(self._started, self._thread), self._line
        if spent:
            line.phases["gc"] = line.phases.get("gc", 0) + spent
            line.cpu_ns["gc"] = line.cpu_ns.get("gc", 0) + spent
        return spent

    def _flush(self, *, last: bool) -> None:
        while self._waiting and (last or self._waiting[0][1].ready()):
            line, spans = self._waiting.pop(0)
            line.device_ns = spans.resolve()
            self._write_step(line)

    def _write_step(self, line: StepLine) -> None:
        if self.timing:
            self.timing.add(_record_of(line))
        self._lines.append(line)
        now_ns = line.start_ns + line.dur_ns
        if now_ns >= self._backlog.earliest_ns:
            self._backlog.write(now_ns)

    def _write_lines(self) -> None:
        lines = []
        while self._lines:
            try:
                lines.append(_encoded(self._lines.popleft()))
            except (TypeError, ValueError) as error:  # a loss that is no number
                note_failure(error)
        if lines:
            self._file.append("".join(lines).encode())


class Phase(ContextDecorator):
    """A context whose time counts as a phase of the step; after an exception, the phase remains the current phase.

    This is a class because it is faster than a generator here: after the operations of a step, its code is no longer in
    the CPU's caches, so shorter code costs less.
    """

    def __init__(self, steps: StepRecorder, name: str) -> None:
        self._steps, self._name = steps, name

    def __enter__(self) -> None:
        self._steps.begin_phase(self._name)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the phase, unless an exception ended it."""
        if kind is None:
            self._steps.end_phase()


def header(rank_info: RankInfo, device: str) -> dict[str, object]:
    """Return the header line of a step log as a dict; a restarted rank appends another header to the same log.

    The header says which rank and process writes the log, on which `device` (cpu or cuda), and since when.
    """
    return {
        "schema": "workbench.steps/1",
        "rank": rank_info.rank,
        "local_rank": rank_info.local_rank,
        "world_size": rank_info.world_size,
        "host": rank_info.host,
        "pid": rank_info.pid,
        "attempt": rank_info.attempt,
        "device": device,
        "started_ns": time_ns(),
    }


def _record_of(line: StepLine) -> StepRecord:
    """Return the fields of a finished step for its line in the step log."""
    return {
        "step": line.step,
        "start_ns": line.start_ns,
        "dur_ns": line.dur_ns,
        "phases": line.phases,
        "cpu_ns": line.cpu_ns,
        "device_ns": dict(line.device_ns),
        "residual_ns": line.dur_ns - sum(line.phases.values()),
        "tokens": line.tokens,
        "loss": _json_number(line.loss),
        "local_loss": _json_number(line.local_loss),
        "grad_norm": _json_number(line.grad_norm),
        **(line.memory or _NO_MEMORY),
        "tags": line.tags,
        "seqs": dict(line.seqs),
    }


def _encoded(line: StepLine) -> str:
    """Return a finished step as its line in the step log, with the fields of `_record_of`."""
    # Written out: a JSON encoder would take four times as long, which a job with short steps would notice.
    phases, cpu_ns, device_ns, seqs = line.phases, line.cpu_ns, line.device_ns, line.seqs
    loss = "null" if line.loss is None else _number(line.loss)
    local_loss = "null" if line.local_loss is None else _number(line.local_loss)
    grad_norm = "null" if line.grad_norm is None else _number(line.grad_norm)
    tags = json.dumps(line.tags) if line.tags else "[]"
    return (
        f'{{"step":{line.step},"start_ns":{line.start_ns},"dur_ns":{line.dur_ns}'
        f',"phases":{{{_members(*phases) % tuple(phases.values())}}}'
        f',"cpu_ns":{{{_members(*cpu_ns) % tuple(cpu_ns.values())}}}'
        f',"device_ns":{{{_members(*device_ns) % tuple(device_ns.values()) if device_ns else ""}}}'
        f',"residual_ns":{line.dur_ns - sum(phases.values())},"tokens":{line.tokens}'
        f',"loss":{loss},"local_loss":{local_loss},"grad_norm":{grad_norm}'
        f',{_memory_members(*(line.memory or _NO_MEMORY).values())},"tags":{tags}'
        f',"seqs":{{{_members(*seqs) % tuple(seqs.values()) if seqs else ""}}}}}\n'
    )


@functools.lru_cache(maxsize=16)
def _memory_members(used: int, reserved: int, limit: int | None, retries: int) -> str:
    """Return the members of a JSON object for a `MemoryUse`; several short steps have the same."""
    most = "null" if limit is None else limit
    return f'"memory_bytes":{used},"reserved_bytes":{reserved},"limit_bytes":{most},"alloc_retries":{retries}'


@functools.lru_cache(maxsize=512)
def _members(*names: str) -> str:
    """Return a template of the members of a JSON object of integers; most steps have the same names."""
    return ",".join(json.dumps(name).replace("%", "%%") + ":%d" for name in names)


def _number(value: float) -> str:
    return repr(value) if type(value) is float and math.isfinite(value) else json.dumps(_json_number(value))


_NO_MEMORY: MemoryUse = {"memory_bytes": 0, "reserved_bytes": 0, "limit_bytes": None, "alloc_retries": 0}


class ProcessMemory:
    """Reads the peak resident memory of this process and its memory limit, in bytes.

    Both are read at most every 20 ms, because the system counts over all threads of the process.
    """

    def __init__(self) -> None:
        self.next_ns = 0
        """When to read them again, a time of any clock."""
        self.use = _NO_MEMORY

    def read(self, now_ns: int) -> MemoryUse:
        """Return the peak so far and the limit; `now_ns` is the time of that clock."""
        self.next_ns = now_ns + _MEMORY_INTERVAL_NS
        peak, still_free = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PAGE, memory_room().free
        limit = None if still_free is None else peak + still_free
        self.use = {"memory_bytes": peak, "reserved_bytes": peak, "limit_bytes": limit, "alloc_retries": 0}
        return self.use


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
