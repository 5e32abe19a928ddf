"""Memory snapshots with exact categories, every `freq` steps and when an allocation fails.

In any training script, with the model built and, if there is one, the process group made:

    memory = MemoryRecorder("outputs/memory_snapshot", model, optimizer, freq=10)
    with memory.step(n):  ...

and `memory.failed(error)` before raising an error on. On CUDA the history is PyTorch's own. PyTorch keeps none on CPU:
there a profiler session runs in every step, and its allocation events are written in the same schema.
"""

import pickle
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from workbench.recorders.files import Place, write_bytes
from workbench.recorders.hang.rank_exit import error_frames, is_out_of_memory
from workbench.recorders.memory.breakdown_table import table
from workbench.recorders.memory.cpu_history import CpuHistory
from workbench.recorders.memory.cuda_history import CudaHistory
from workbench.recorders.memory.limits import Room, lift, resident, room
from workbench.recorders.memory.tensor_hooks import Notes
from workbench.recorders.timing.profiler_traces import TracePlan

ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+) ?(bytes|[KMGT]iB)")
UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
MOST_MARKS = 100_000


class MemoryRecorder:
    """Snapshots of this rank: `folder`/iteration_N, and iteration_N_exit if memory runs out with N the last step."""

    def __init__(
        self,
        folder: str | Path,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        freq: int = 10,
        traces: TracePlan | None = None,
    ) -> None:
        self._folder, self._freq, self.traces = Path(folder), freq, traces
        self._on_device = any(parameter.is_cuda for parameter in model.parameters())
        self._notes = Notes(model, optimizer)
        self._history = CudaHistory(self._notes) if self._on_device else CpuHistory(self._notes, freq, traces)
        self._marks: list[dict[str, Any]] = []
        self._phase = ""
        self._finished: int | None = None
        self._failed_ns = 0

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Record one step, and write a snapshot if one is due."""
        with self.recording(step):
            yield
        self.finish()
        if self.due(step):
            self.write()

    @contextmanager
    def recording(self, step: int) -> Iterator[None]:
        """Record what happens inside as one step; `finish` ends that."""
        self._finished = step - 1 if self._finished is None else self._finished
        self._history.begin(step)
        with self._notes.saving(), self._marked(f"step#{step}"):
            yield
        self._finished = step

    def finish(self) -> None:
        """End the recording of a step."""
        self._history.end()

    def due(self, step: int) -> bool:
        """Whether a snapshot is written after this step."""
        return step % self._freq == 0

    def write(self) -> None:
        """Write a snapshot of this moment."""
        self._write(self._folder / f"iteration_{self._finished}", self._snapshot(room()))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Mark a phase such as fwd or bwd."""
        outer, self._phase = self._phase, name
        self._notes.phase(name)
        with self._marked(name):
            yield
        self._phase = outer
        self._notes.phase(outer)

    def failed(self, error: BaseException) -> None:
        """Write a snapshot if the error says that an allocation failed. Lifts the process's soft limits for that."""
        if not is_out_of_memory(error):
            return
        left = room()
        lift()
        self._history.end()
        snapshot = self._snapshot(left)
        if not self._on_device:  # the CUDA allocator writes such an entry itself
            add_failure(snapshot["device_traces"][0], failure(error, left, self._failed_ns or time.time_ns()))
        self._write(self._folder / f"iteration_{self._finished or 0}_exit", snapshot)

    def breakdown(self) -> str:
        """What holds the memory that was recorded of late, as a table."""
        return table(self._snapshot(room()))

    def close(self) -> None:
        """Remove all hooks."""
        self._history.end()
        self._notes.close()

    @contextmanager
    def _marked(self, name: str) -> Iterator[None]:
        self._mark("START", name, time.time_ns())
        try:
            yield
        except BaseException:
            self._failed_ns = self._failed_ns or time.time_ns()
            raise
        finally:
            self._mark("END", name, time.time_ns())

    def _mark(self, stage: str, name: str, time_ns: int) -> None:
        self._marks.append({"stage": stage, "name": name, "device": 0, "time_us": time_ns // 1000})

    def _snapshot(self, left: Room) -> dict[str, Any]:
        snapshot = self._history.snapshot()
        begin = next((entry["time_us"] for trace in snapshot["device_traces"] for entry in trace), 0)
        snapshot["external_annotations"] = [
            *snapshot.get("external_annotations", []),
            *(mark for mark in self._all_marks() if mark["time_us"] >= begin),
        ]
        snapshot["workbench"] = {
            "schema": "workbench.snapshot/1",
            "rank": Place.here().rank,
            "step": self._finished or 0,
            "device": "cuda" if self._on_device else "cpu",
            "limit_bytes": torch.cuda.mem_get_info()[1] if self._on_device else left.limit,
            "process_bytes": resident(),
            "exact": True,
            "phase": self._phase,
            **self._history.details(),
        }
        return snapshot

    def _all_marks(self) -> list[dict[str, Any]]:
        for span in self._history.spans:
            self._mark("START", span.name, span.begin_ns)
            self._mark("END", span.name, span.end_ns)
        self._history.spans.clear()
        self._marks = sorted(self._marks, key=lambda mark: int(mark["time_us"]))[-MOST_MARKS:]
        return self._marks

    def _write(self, folder: Path, snapshot: dict[str, Any]) -> None:
        write_bytes(folder / f"rank{Place.here().rank}_memory_snapshot.pickle", pickle.dumps(snapshot, protocol=4))


def failure(error: BaseException, left: Room, time_ns: int) -> dict[str, Any]:
    """The trace entry of an allocation that failed: what was asked for, what was left, and the failing line."""
    asked = ASKED.search(str(error))
    return {
        "action": "oom",
        "device_free": left.free or 0,
        "size": int(float(asked[1]) * UNITS[asked[2]]) if asked else 0,
        "stream": 0,
        "time_us": time_ns // 1000,
        "compile_context": "N/A",
        "user_metadata": "",
        "frames": error_frames(error),
    }


def add_failure(trace: list[dict[str, Any]], entry: dict[str, Any]) -> None:
    """Insert the entry where its time says, but before what the unwinding has freed since.

    The allocation failed, so less was left than it asked for; what made it more came after.
    """
    place = next((k for k, other in enumerate(trace) if other["time_us"] > entry["time_us"]), len(trace))
    back, free = place, entry["device_free"]
    while back and free >= entry["size"] and trace[back - 1]["action"].startswith("free_"):
        back -= 1
        free -= trace[back]["size"] * (trace[back]["action"] == "free_completed")
    if 0 <= free < entry["size"]:
        place = back
        entry |= {"device_free": free, "time_us": trace[back]["time_us"] if back < len(trace) else entry["time_us"]}
    trace.insert(place, entry)
