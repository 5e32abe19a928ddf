"""Write memory snapshots with exact categories, every `freq` steps and when an allocation fails.

In any training script, after the model and the process group (if there is one) were created:

    memory = MemoryRecorder("outputs/memory_snapshot", model, optimizer, freq=10)
    for n in range(1, steps + 1):
        with memory.step(n):  # around the whole step: batch, forward, backward, optimizer
            ...

If an allocation fails inside of a step, a snapshot is written. On CUDA, PyTorch itself records the history of
allocations. On a CPU, a profiler session records it, and a recorded step takes several times as long. So on a CPU, only
the last `window` steps before each snapshot are recorded. If the process has a memory limit, all steps are recorded,
because an allocation may then fail in any step.
"""

import pickle
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from torch import nn

from workbench.recorders.files import RankInfo
from workbench.recorders.hang.rank_exit import error_frames, is_out_of_memory
from workbench.recorders.memory.breakdown_table import table
from workbench.recorders.memory.cpu_history import CpuHistory
from workbench.recorders.memory.cuda_history import CudaHistory
from workbench.recorders.memory.holders import HolderSearch
from workbench.recorders.memory.limits import Room, memory_room, raise_soft_limits, resident_bytes, soft_limits_kept
from workbench.recorders.memory.snapshot import Mark, Snapshot, TraceEntry
from workbench.recorders.memory.tensor_hooks import TensorHooks
from workbench.recorders.own_files import harmless, note_failure, save_bytes
from workbench.recorders.timing.profiler_traces import TracePlan, profiler_runs

WINDOW = 5
"""The default number of steps that are recorded before a snapshot: fewer would not show growth from step to step."""


@dataclass(frozen=True)
class SnapshotPlan:
    """The schedule of memory snapshots: a snapshot after every `freq` steps, for which `window` steps are recorded.

    With `last_step`, the `window` steps up to this step are recorded too, for a table of the memory after it. Example:
    with `freq` 10 and `window` 3, steps 8, 9, 10, 18, 19, 20, ... are recorded.
    """

    freq: int = 10
    window: int = WINDOW
    last_step: int | None = None

    def is_due(self, step: int) -> bool:
        return step % self.freq == 0

    def covers(self, step: int) -> bool:
        """Return whether a step is recorded: it is one of the `window` steps up to a snapshot or up to `last_step`."""
        before_last = -1 if self.last_step is None else self.last_step - step
        return -step % self.freq < self.window or 0 <= before_last < self.window

    @property
    def skips_steps(self) -> bool:
        return self.window < self.freq


_ALLOCATION_SIZE = re.compile(r"[Tt]ried to allocate ([\d.]+) ?(bytes|[KMGT]iB)")
UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_MAX_MARKS = 100_000
RECORDED = "_workbench_recorded"
"""The attribute of an error about which a snapshot was written."""


class MemoryRecorder:
    """Writes memory snapshots of this rank to `folder`/iteration_N, or to iteration_N_exit if memory runs out.

    N is the last finished step. `optimizer` tells the optimizer's state from other memory. A snapshot is written every
    `freq` steps; on a CPU, the last `window` steps before each are recorded, and all steps until `last_step`. `traces`
    says in which steps a recording on a CPU also writes a profiler trace. With `find_holders`, what keeps tensors that
    each step leaves is looked for at the ends of a few steps (`HolderSearch`). In the training loop:

        memory = MemoryRecorder("outputs/memory_snapshot", model, optimizer)
        for n in range(1, steps + 1):
            with memory.step(n):
                train_step()
    """

    def __init__(
        self,
        folder: str | Path,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        freq: int = 10,
        window: int = WINDOW,
        last_step: int | None = None,
        traces: TracePlan | None = None,
        find_holders: bool = False,
    ) -> None:
        self._folder, self.traces = Path(folder), traces
        self._plan = SnapshotPlan(freq, window, last_step)
        self._on_device = on_cuda(model)
        self._hooks = TensorHooks(model, optimizer)
        self._history = CudaHistory(self._hooks) if self._on_device else CpuHistory(self._hooks, window, traces)
        self._search = HolderSearch(self._folder) if find_holders else None
        self._marks: list[Mark] = []
        self._phase = ""
        self.is_recording = False
        """Whether allocations are being recorded now."""
        self._contexts = ExitStack()
        self._last_finished_step: int | None = None
        self._failed_ns = 0

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Record one step, and write a snapshot if one is due, or if an allocation fails in the step."""
        try:
            with self.recording(step):
                yield
        except Exception as error:
            self._save_failure(error)
            raise
        self.finish()
        if self.is_due(step):
            self.write()

    @contextmanager
    def recording(self, step: int) -> Iterator[None]:
        """Record the allocations inside this context as part of step `step`, if this step needs to be recorded.

        The caller must call `finish` after the context.
        """
        self._last_finished_step = step - 1 if self._last_finished_step is None else self._last_finished_step
        self.is_recording = False
        with ExitStack() as self._contexts:
            self._prepare(step)
            with self._marked(f"step#{step}"):
                yield
        self._last_finished_step = step

    @harmless
    def finish(self) -> None:
        """End the recording of the current step; call this method after the context of `recording`."""
        if not self._history.end():
            self._marks.clear()
        self.is_recording = False
        if self._search is not None:
            self._search.step_ended(self._last_finished_step or 0)

    def is_due(self, step: int) -> bool:
        return self._plan.is_due(step)

    @property
    def is_occasional(self) -> bool:
        """Whether this step is slower than others because its memory is recorded; its times are then not typical.

        This happens only on a CPU, when other steps are not recorded.
        """
        return self.is_recording and not self._on_device and self._plan.skips_steps

    @harmless
    def write(self) -> None:
        """Write a snapshot of the current memory to `folder`/iteration_N; N is the last finished step."""
        self._write(self._folder / f"iteration_{self._last_finished_step}", self._snapshot(memory_room()))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record that a phase of the step, such as fwd or bwd, lasts as long as this context."""
        self._begin_if_limited()
        outer, self._phase = self._phase, name
        self._hooks.note_phase(name)
        with self._marked(name):
            yield
        self._phase = outer
        self._hooks.note_phase(outer)

    def failed(self, error: BaseException) -> None:
        """Write a snapshot if `error` reports a failed allocation.

        Call this method for an error outside of `step`, before you raise it again. It does nothing about an error that
        `step` has already recorded. The soft memory limits of the process are raised first, so that there is memory for
        the snapshot.
        """
        if not is_out_of_memory(error) or getattr(error, RECORDED, False):
            return
        setattr(error, RECORDED, True)
        room_left = memory_room()
        raise_soft_limits()
        self._history.end()
        snapshot = self._snapshot(room_left)
        if not self._on_device:  # the CUDA allocator writes such an entry itself
            insert_failure(
                snapshot["device_traces"][0], _failure_entry(error, room_left, self._failed_ns or time.time_ns())
            )
        self._write(self._folder / f"iteration_{self._last_finished_step or 0}_exit", snapshot)

    def _save_failure(self, error: Exception) -> None:
        """Write a snapshot about an error that leaves a step; the script may catch the error and train on."""
        try:
            with soft_limits_kept():
                self.failed(error)
        except Exception as failure:  # noqa: BLE001  # the error itself matters more
            note_failure(failure)

    def breakdown(self) -> str:
        """Return a text table of what uses the memory, from the history recorded so far."""
        return table(self._snapshot(memory_room()))

    def close(self) -> None:
        self._history.end()
        self._hooks.close()

    def _is_wanted(self, step: int) -> bool:
        """Return whether allocations are recorded from the beginning of step `step`.

        On CUDA, and in a process with a memory limit, all steps are recorded. Otherwise only the steps for snapshots
        and traces are recorded.
        """
        traced = self.traces is not None and self.traces.is_traced(step)
        return self._on_device or traced or self._plan.covers(step) or memory_room().limit is not None

    @harmless
    def _prepare(self, step: int) -> None:
        if self._is_wanted(step) and not self._is_profiled_by_script():
            self._begin()
        else:
            self._history.skip()
            self._marks.clear()

    def _begin(self) -> None:
        self.is_recording = True
        self._history.begin((self._last_finished_step or 0) + 1)
        self._contexts.enter_context(self._hooks.note_saved_tensors())

    @harmless
    def _begin_if_limited(self) -> None:
        """Record allocations from now on if the process has a memory limit.

        A script may set a memory limit at any time, even in the middle of a step.
        """
        if not self.is_recording and memory_room().limit is not None and not self._is_profiled_by_script():
            self._begin()

    def _is_profiled_by_script(self) -> bool:
        """Return whether a profiler of the script runs, which a session of ours would empty: there is only one."""
        return not self._on_device and profiler_runs()

    @contextmanager
    def _marked(self, name: str) -> Iterator[None]:
        self._mark("START", name)
        try:
            yield
        except BaseException:
            # The innermost of the nested marks sees the error first, before the frames around it free their tensors.
            self._failed_ns = self._failed_ns or harmless(time.time_ns)() or 0
            raise
        finally:
            self._mark("END", name)

    @harmless
    def _mark(self, stage: str, name: str, time_ns: int | None = None) -> None:
        time_ns = time.time_ns() if time_ns is None else time_ns
        self._marks.append({"stage": stage, "name": name, "device": 0, "time_us": time_ns // 1000})

    def _snapshot(self, room_left: Room) -> Snapshot:
        snapshot = self._history.snapshot()
        begin = next((entry["time_us"] for trace in snapshot["device_traces"] for entry in trace), 0)
        snapshot["external_annotations"] = [
            *snapshot.get("external_annotations", []),
            *(mark for mark in self._all_marks() if mark["time_us"] >= begin),
        ]
        snapshot["workbench"] = {
            "schema": "workbench.snapshot/1",
            "rank": RankInfo.here().rank,
            "step": self._last_finished_step or 0,
            "device": "cuda" if self._on_device else "cpu",
            "limit_bytes": torch.cuda.mem_get_info()[1] if self._on_device else room_left.limit,
            "limit_name": None if self._on_device else room_left.name,
            "process_bytes": resident_bytes(),
            "exact": True,
            "phase": self._phase,
            **self._history.details(),
        }
        return snapshot

    def _all_marks(self) -> list[Mark]:
        for span in self._history.spans:
            self._mark("START", span.name, span.begin_ns)
            self._mark("END", span.name, span.end_ns)
        self._history.spans.clear()
        self._marks = sorted(self._marks, key=lambda mark: int(mark["time_us"]))[-_MAX_MARKS:]
        return self._marks

    def _write(self, folder: Path, snapshot: Snapshot) -> None:
        save_bytes(folder / f"rank{RankInfo.here().rank}_memory_snapshot.pickle", pickle.dumps(snapshot, protocol=4))


def on_cuda(model: nn.Module) -> bool:
    """Return whether a model computes on CUDA, even if its weights are offloaded to the CPU."""
    return any(tensor.is_cuda for tensor in chain(model.parameters(), model.buffers()))


def _failure_entry(error: BaseException, room_left: Room, time_ns: int) -> TraceEntry:
    """Return the trace entry for a failed allocation: requested and available bytes, and the error's call stack.

    `room_left` has the memory limit and the bytes that are free under it. `time_ns` is the Unix time of the failure.
    """
    match = _ALLOCATION_SIZE.search(str(error))
    return {
        "action": "oom",
        "device_free": room_left.free or 0,
        "size": int(float(match[1]) * UNITS[match[2]]) if match else 0,
        "stream": 0,
        "time_us": time_ns // 1000,
        "compile_context": "N/A",
        "user_metadata": "",
        "frames": error_frames(error),
    }


def insert_failure(trace: list[TraceEntry], entry: TraceEntry) -> None:
    """Insert the entry of a failed allocation into `trace`, before the frees that the exception itself caused.

    When an exception leaves a function, its tensors are freed. `entry` is made after these frees, so its free bytes
    (`device_free`) are too many. Example: 8 bytes were requested while 3 were free. The exception then freed 10, so
    `entry` says 13; this function corrects the number to 3.
    """
    position = next((k for k, other in enumerate(trace) if other["time_us"] > entry["time_us"]), len(trace))
    earlier, free = position, entry["device_free"]
    while earlier and free >= entry["size"] and trace[earlier - 1]["action"].startswith("free_"):
        earlier -= 1
        free -= trace[earlier]["size"] * (trace[earlier]["action"] == "free_completed")
    if 0 <= free < entry["size"]:
        position = earlier
        entry["device_free"] = free
        if earlier < len(trace):
            entry["time_us"] = trace[earlier]["time_us"]
    trace.insert(position, entry)
