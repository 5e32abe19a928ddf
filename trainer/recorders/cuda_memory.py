"""The history that PyTorch's CUDA allocator keeps, with categories joined to it."""

from bisect import bisect_right
from collections import defaultdict
from typing import Any

import torch

from trainer.recorders.allocations import Span
from trainer.recorders.notes import MODULE, PHASE, PRIORITY, TEMPORARY, UNKNOWN, Note, Notes

ENTRIES = 100_000


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
    """Give each alloc entry the weightiest role noted in its lifetime; returns those of blocks older than the trace."""
    births: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for entry in trace:
        if entry["action"] == "alloc":
            entry["category"] = TEMPORARY
            births[entry["addr"]].append(entry)
    older: dict[int, list[str]] = {}
    for note in notes:
        if note.kind in (MODULE, PHASE):
            continue
        lives = births.get(note.address, [])
        index = bisect_right(lives, note.time_ns // 1000, key=lambda entry: int(entry["time_us"])) - 1
        if index >= 0:
            raise_category(lives[index], note)
        else:
            older[note.address] = [note.kind, note.label]
    return older


def raise_category(entry: dict[str, Any], note: Note) -> None:
    """Let a note decide what an entry is, unless a weightier one has."""
    if PRIORITY[note.kind] >= PRIORITY.get(entry["category"], 0):
        entry["category"], entry["user_metadata"] = note.kind, note.label
