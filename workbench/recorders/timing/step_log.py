"""Write the step log, a JSON line per step with the time of each phase, the loss, the tokens and other values.

In any training script:

    steps = StepRecorder("outputs")
    with steps.step(n) as line:  ...  with steps.phase("fwd"): ...  line.update(tokens=..., loss=...)
"""

import gc
import json
import math
import os
import resource
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ContextDecorator, contextmanager
from pathlib import Path

from workbench.recorders import automatic
from workbench.recorders.files import RankInfo
from workbench.recorders.hang.heartbeat import DONE, Heartbeat
from workbench.recorders.memory.limits import memory_room
from workbench.recorders.timing.device_clock import DeviceClock, Spans
from workbench.recorders.timing.step_record import MemoryUse, StepRecord
from workbench.recorders.timing.step_table import StepTable

ENCODER = json.JSONEncoder(separators=(",", ":"))
BETWEEN = "between"
RESIDUAL = "step"
# `ru_maxrss` is in bytes on macOS and in KiB on Linux.
PAGE = 1 if sys.platform == "darwin" else 1024


def json_number(value: float | None) -> float | str | None:
    """Return a number as JSON can represent it: NaN and infinities become the strings "nan", "inf" and "-inf"."""
    return value if value is None or math.isfinite(value) else str(float(value))


class StepLine:
    """The values of a step that the training loop sets while the step runs, such as tokens and loss."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.tokens = 0
        self.loss: float | None = None
        self.local_loss: float | None = None
        self.grad_norm: float | None = None
        self.seqs: Mapping[str, int] = {}
        self.tags: list[str] = []

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


class PhaseClock:
    """Measures wall-clock and CPU time of each phase of a step; if phases are nested, the innermost gets the time.

    Example: a step of 10 ms contains fwd of 6 ms, which contains gc of 2 ms. Then fwd counts 4 ms, gc 2 ms, and the
    remaining time of the step (residual) is 4 ms.
    """

    def __init__(self) -> None:
        self.wall: defaultdict[str, int] = defaultdict(int)
        self.cpu: defaultdict[str, int] = defaultdict(int)
        self.open: list[str] = []
        self._wall_mark = self._cpu_mark = 0

    def restart(self) -> None:
        """Discard all measured times, and start measuring now."""
        self.wall.clear()
        self.cpu.clear()
        self._wall_mark, self._cpu_mark = time.perf_counter_ns(), time.process_time_ns()

    def charge(self) -> None:
        """Add the time since the last call of this method, or of `restart`, to the innermost open phase."""
        wall, cpu = time.perf_counter_ns(), time.process_time_ns()
        name = self.open[-1] if self.open else BETWEEN
        self.wall[name] += wall - self._wall_mark
        self.cpu[name] += cpu - self._cpu_mark
        self._wall_mark, self._cpu_mark = wall, cpu


class StepRecorder:
    """Writes the step log `steps/rank_R.jsonl` and the heartbeat `steps/heartbeat_R.bin` of rank R below `folder`.

    The heartbeat has the current step and phase of the rank. If the table `timing` is given, each finished step is
    added to it.
    """

    def __init__(
        self, folder: str | Path, *, device: str = "cpu", timing: StepTable | None = None, reset_peaks: bool = True
    ) -> None:
        rank_info = RankInfo.here()
        self.timing = timing
        folder_of_logs = Path(folder) / "steps"
        self.heartbeat = Heartbeat(folder_of_logs / f"heartbeat_{rank_info.rank}.bin")
        # Without a buffer, so that the log of a killed rank has all of its finished steps.
        self._file = (folder_of_logs / f"rank_{rank_info.rank}.jsonl").open("ab", buffering=0)
        self._device = DeviceClock(reset_peaks=reset_peaks) if device == "cuda" else None
        self._clock = PhaseClock()
        self._waiting: list[tuple[StepRecord, Spans]] = []
        self.current_step = 0
        self._thread, self._pid = threading.get_ident(), rank_info.pid
        gc.callbacks.append(self._time_garbage_collection)
        self._write(header(rank_info, device))
        self.heartbeat.beat(0, b"init")
        automatic.give_way_to_steps(self)

    @property
    def current_phase(self) -> str:
        """The name of the innermost open phase; between two steps, a name that says that no step is running."""
        return self._clock.open[-1] if self._clock.open else BETWEEN

    @property
    def finished_step(self) -> int:
        """The number of the last step that has ended."""
        return self.current_step - bool(self._clock.open)

    @contextmanager
    def step(self, step: int) -> Iterator[StepLine]:
        """Record a step inside this context, which yields the `StepLine` for the loss and other values.

        If an exception ends the step, no line is written to the step log, and the heartbeat keeps the phase in which
        the exception was raised.
        """
        line, start_ns, started = StepLine(step), time.time_ns(), time.perf_counter_ns()
        self.current_step = step
        self._clock.restart()
        self._clock.open.append(RESIDUAL)
        self.heartbeat.beat(step, RESIDUAL.encode())
        yield line
        self._clock.charge()
        self._clock.open.pop()
        self._finish(line, start_ns, time.perf_counter_ns() - started)
        self.heartbeat.beat(step, BETWEEN.encode())

    def phase(self, name: str) -> "Phase":
        """Record the time inside this context as phase `name`; phases inside this phase do not count for it."""
        return Phase(self, name)

    def begin_phase(self, name: str) -> None:
        """Begin phase `name`, like `phase` but without a context; call `end_phase` afterwards."""
        self._enter(name)
        if self._device:
            self._device.begin(name)

    def end_phase(self) -> None:
        """End the phase that began last."""
        if self._device:
            self._device.end()
        self._leave()

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
        gc.callbacks.remove(self._time_garbage_collection)
        self._flush(last=True)
        self._file.close()

    def close(self) -> None:
        """Write the steps that waited for device times, close the step log, and record a clean end."""
        self.stop()
        self.heartbeat.beat(self.current_step, DONE.encode())

    def _enter(self, name: str) -> None:
        self._clock.charge()
        self._clock.open.append(name)
        self.heartbeat.beat(self.current_step, name.encode())

    def _leave(self) -> None:
        self._clock.charge()
        self._clock.open.pop()
        self.heartbeat.beat(self.current_step, self.current_phase.encode())

    def _time_garbage_collection(self, when: str, info: dict[str, int]) -> None:
        """Count the time of full garbage collections as phase `gc`; Python's gc module calls this method."""
        # Python calls the hook on the thread that collects, also in a forked child; the step's time is this thread's.
        if info["generation"] < 2 or threading.get_ident() != self._thread or os.getpid() != self._pid:
            return
        if when == "start":
            self._enter("gc")
        else:
            self._leave()

    def _finish(self, line: StepLine, start_ns: int, dur_ns: int) -> None:
        record = self._record(line, start_ns, dur_ns)
        if self._device is None:
            self._write_step(record)
            return
        self._waiting.append((record, self._device.take()))
        self._flush(last=False)

    def _record(self, line: StepLine, start_ns: int, dur_ns: int) -> StepRecord:
        phases = {name: ns for name, ns in self._clock.wall.items() if name != RESIDUAL}
        return {
            "step": line.step,
            "start_ns": start_ns,
            "dur_ns": dur_ns,
            "phases": phases,
            "cpu_ns": {name: ns for name, ns in self._clock.cpu.items() if name != RESIDUAL},
            "device_ns": {},
            "residual_ns": dur_ns - sum(phases.values()),
            "tokens": line.tokens,
            "loss": json_number(line.loss),
            "local_loss": json_number(line.local_loss),
            "grad_norm": json_number(line.grad_norm),
            **(self._device.memory() if self._device else process_memory()),
            "tags": line.tags,
            "seqs": dict(line.seqs),
        }

    def _flush(self, *, last: bool) -> None:
        while self._waiting and (last or self._waiting[0][1].ready()):
            record, spans = self._waiting.pop(0)
            record["device_ns"] = spans.resolve()
            self._write_step(record)

    def _write_step(self, record: StepRecord) -> None:
        self._write(record)
        if self.timing:
            self.timing.add(record)

    def _write(self, record: Mapping[str, object]) -> None:
        self._file.write(ENCODER.encode(record).encode() + b"\n")


class Phase(ContextDecorator):
    """A context whose time counts as a phase of the step; after an exception, the phase remains the current phase.

    This is a class because it is faster than a generator here: after the operations of a step, its code is no longer in
    the CPU's caches, so shorter code costs less.
    """

    def __init__(self, steps: StepRecorder, name: str) -> None:
        self._steps, self._name = steps, name

    def __enter__(self) -> None:
        """Begin the phase."""
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
        "started_ns": time.time_ns(),
    }


def process_memory() -> MemoryUse:
    """Return the peak resident memory of this process so far, and its memory limit, in bytes."""
    peak, still_free = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PAGE, memory_room().free
    limit = None if still_free is None else peak + still_free
    return {"memory_bytes": peak, "reserved_bytes": peak, "limit_bytes": limit, "alloc_retries": 0}
