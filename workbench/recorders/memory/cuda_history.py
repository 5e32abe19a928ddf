"""Add categories to the allocations in the history that PyTorch's CUDA allocator records."""

from collections.abc import Iterator
from heapq import merge

import torch

from workbench.recorders.memory.block_categories import Block, BlockCategories
from workbench.recorders.memory.device_use import device_use
from workbench.recorders.memory.profiler_events import Span
from workbench.recorders.memory.snapshot import Details, Snapshot, TraceEntry, first_entry
from workbench.recorders.memory.tensor_hooks import TEMPORARY, Note, TensorHooks

_MAX_ENTRIES = 100_000
_FREES = ("free_requested", "free_completed")


class CudaHistory:
    """Turns on PyTorch's own history of CUDA allocations, and collects notes on what each block is used for.

    A note is what a hook recorded about a tensor, a module or a phase. `CpuHistory` has the same methods, so that
    `MemoryRecorder` can use either class.
    """

    def __init__(self, hooks: TensorHooks) -> None:
        self.spans: list[Span] = []
        self._hooks, self._notes = hooks, list[Note]()
        self._older: dict[int, list[str]] = {}
        torch.cuda.memory._record_memory_history(max_entries=_MAX_ENTRIES)  # noqa: SLF001
        hooks.start()

    def begin(self, step: int) -> None:  # noqa: ARG002
        """Write a note on each weight, gradient and optimizer state, because their addresses may have changed."""
        self._hooks.note_long_lived_tensors()

    def skip(self) -> None:
        """Do nothing when a step is not to be recorded: PyTorch's own history includes every step anyway."""

    def end(self) -> bool:
        """Store the notes of the step and return True; the device is not read until a snapshot is due."""
        self._notes = (self._notes + self._hooks.take_notes())[-_MAX_ENTRIES:]
        return True

    def snapshot(self) -> Snapshot:
        """Return PyTorch's memory snapshot, with a category added to each allocation of its traces."""
        # What a script replaced since the step began got no note.
        self._hooks.note_long_lived_tensors()
        self.end()
        snapshot: Snapshot = torch.cuda.memory._snapshot()  # noqa: SLF001
        for trace in snapshot["device_traces"]:
            self._older |= categorize(trace, self._notes)
            if trace:
                trace.insert(0, first_entry(trace))
        return snapshot

    def details(self) -> Details:
        """Return the fields of a snapshot's entry `workbench` that have different values on CPU and CUDA."""
        return {
            "made_up_segments": False,
            "lost_notes": self._hooks.lost,
            "blocks": self._older,
            **device_use(),
        }


def categorize(trace: list[TraceEntry], notes: list[Note]) -> dict[int, list[str]]:
    """Add a category and a label to each allocation in `trace`, a list of allocations and frees.

    Return {address: [category, label]} of the blocks that were allocated before the trace begins. The allocator uses an
    address again after a free. So trace entries and notes are merged by time: a note describes the block that has the
    address at the time of the note.
    """
    categories, blocks, older = BlockCategories(), list[tuple[TraceEntry, Block]](), dict[int, Block]()
    events: Iterator[TraceEntry | Note] = merge(trace, notes, key=_time_of)
    for event in events:
        if isinstance(event, Note):
            if not categories.apply(event):
                older.setdefault(event.address, Block(event.address, 0, [], TEMPORARY, "")).apply_note(event)
        elif event["action"] == "alloc":
            blocks.append((event, categories.allocate(event["addr"], event["size"], event.get("frames", []))))
        elif event["action"] in _FREES:
            categories.live.pop(event["addr"], None)
    for entry, block in blocks:
        entry["category"], entry["user_metadata"] = block.category, block.label
    return {address: [block.category, block.label] for address, block in older.items()}


def _time_of(event: TraceEntry | Note) -> int:
    """Return the time of a trace entry or a note in nanoseconds, for sorting.

    Times of trace entries are whole microseconds. A note in the same microsecond describes a block that was just
    allocated or is about to be freed. So an allocation counts as the start of its microsecond, and a free as the end.
    """
    if isinstance(event, Note):
        return event.time_ns
    return int(event["time_us"]) * 1000 + 999 * (event["action"] in _FREES)
