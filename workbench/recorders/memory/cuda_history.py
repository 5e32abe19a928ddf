"""The history that PyTorch's CUDA allocator keeps, with categories joined to it."""

from collections.abc import Iterator
from heapq import merge
from typing import Any

import torch

from workbench.recorders.memory.block_categories import Block, Roles
from workbench.recorders.memory.profiler_events import Span
from workbench.recorders.memory.tensor_hooks import TEMPORARY, UNKNOWN, Note, Notes

ENTRIES = 100_000
ENDS = ("free_requested", "free_completed")


class CudaHistory:
    """PyTorch's own recording, on since this was made, and the notes that say what the blocks are."""

    def __init__(self, notes: Notes) -> None:
        self.spans: list[Span] = []
        self._notes, self._kept = notes, list[Note]()
        self._older: dict[int, list[str]] = {}
        torch.cuda.memory._record_memory_history(max_entries=ENTRIES)  # noqa: SLF001
        notes.open()

    def begin(self, step: int) -> None:  # noqa: ARG002
        """PyTorch records by itself; what outlives steps is noted again, as it may lie elsewhere now."""
        for tensor, category, label in self._notes.standing():
            self._notes.role(tensor, category, label)

    def end(self) -> None:
        """Nothing is read from the device before a snapshot is due."""
        self._kept = (self._kept + self._notes.taken())[-ENTRIES:]

    def snapshot(self) -> dict[str, Any]:
        """PyTorch's snapshot with categories."""
        self.end()
        snapshot: dict[str, Any] = torch.cuda.memory._snapshot()  # noqa: SLF001
        for trace in snapshot["device_traces"]:
            self._older |= categorize(trace, self._kept)
            if trace:
                first = {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "frames": [], "category": UNKNOWN}
                trace.insert(0, first | {"time_us": trace[0].get("time_us", 0)})
        return snapshot

    def details(self) -> dict[str, Any]:
        """What is particular about a device's snapshot."""
        free, total = torch.cuda.mem_get_info()
        return {
            "made_up_segments": False,
            "lost_notes": self._notes.lost,
            "blocks": self._older,
            "device_used_bytes": total - free,
        }


def categorize(trace: list[dict[str, Any]], notes: list[Note]) -> dict[int, list[str]]:
    """Give each alloc entry its category and label; returns those of blocks older than the trace, by address."""
    roles, blocks, older = Roles(), list[tuple[dict[str, Any], Block]](), dict[int, Block]()
    happened: Iterator[Any] = merge(trace, notes, key=when)
    for found in happened:
        if isinstance(found, Note):
            if not roles.heed(found):
                older.setdefault(found.address, Block(found.address, 0, [], TEMPORARY, "")).take(found)
        elif found["action"] == "alloc":
            blocks.append((found, roles.allocated(found["addr"], found["size"], found.get("frames", []))))
        elif found["action"] in ENDS:
            roles.live.pop(found["addr"], None)
    for entry, block in blocks:
        entry["category"], entry["user_metadata"] = block.category, block.label
    return {address: [block.category, block.label] for address, block in older.items()}


def when(found: dict[str, Any] | Note) -> int:
    """Nanoseconds. An entry tells microseconds: a note in the same one is about what was made, or is about to go."""
    if isinstance(found, Note):
        return found.time_ns
    return int(found["time_us"]) * 1000 + 999 * (found["action"] in ENDS)
