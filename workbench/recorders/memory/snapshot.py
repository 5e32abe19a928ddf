"""Define the format of a memory snapshot: that of `torch.cuda.memory._snapshot()`, with fields of our own added."""

from typing import TypedDict


class Frame(TypedDict):
    """A source line on a stack; `filename` is empty for operations of PyTorch."""

    name: str
    filename: str
    line: int


class TraceEntry(TypedDict, total=False):
    """An event of a device's allocator, such as an allocation or a free.

    `category` is not in PyTorch's format. `user_metadata` is, and holds the label, such as the name of the tensor.
    """

    action: str
    addr: int
    size: int
    stream: int
    time_us: int
    compile_context: str
    user_metadata: str
    frames: list[Frame]
    category: str
    device_free: int


def first_entry(trace: list[TraceEntry]) -> TraceEntry:
    """Return an entry with the category `unknown`, to be put first in `trace`.

    PyTorch's viewer shows categories only if an entry has that category.
    """
    time_us = trace[0].get("time_us", 0) if trace else 0
    return {
        "action": "snapshot", "addr": 0, "size": 0, "stream": 0,
        "time_us": time_us, "frames": [], "category": "unknown",
    }  # fmt: skip


class SegmentBlock(TypedDict):
    """A block, which is a live or free part of a segment; sizes are in bytes, and `state` says whether it is live."""

    address: int
    size: int
    requested_size: int
    state: str
    frames: list[Frame]


class Segment(TypedDict):
    """A range of addresses that the allocator reserved from the device; sizes are in bytes."""

    device: int
    address: int
    total_size: int
    allocated_size: int
    active_size: int
    requested_size: int
    stream: int
    segment_type: str
    segment_pool_id: tuple[int, int]
    is_expandable: bool
    frames: list[Frame]
    blocks: list[SegmentBlock]


class Mark(TypedDict):
    """The start or end of a step, a phase or an optimizer call; `stage` is "START" or "END"."""

    stage: str
    name: str
    device: int
    time_us: int


class Details(TypedDict, total=False):
    """The fields that this project adds to a snapshot, under its key `workbench`.

    `limit_bytes` is the memory of the device, or on a CPU the limit of the process that `limit_name` names, such as
    `RLIMIT_DATA`. `step` is the last finished step, and `exact` says whether hooks recorded the categories of blocks.
    `blocks` is {address: [category, label]} of blocks that were allocated before the trace begins. `lost_notes` counts
    the notes of hooks that were dropped or whose block is unknown. Of `device_used_bytes` this process has
    `device_process_bytes`, if the driver tells it; `nccl_groups` counts the rank's process groups that use NCCL.
    """

    schema: str
    rank: int
    step: int
    device: str
    limit_bytes: int | None
    limit_name: str | None
    process_bytes: int | None
    exact: bool
    phase: str
    made_up_segments: bool
    lost_notes: int
    blocks: dict[int, list[str]]
    device_used_bytes: int
    device_process_bytes: int
    nccl_groups: int


class Snapshot(TypedDict, total=False):
    """A memory snapshot: the segments, and for each device the history of its allocations (trace)."""

    segments: list[Segment]
    device_traces: list[list[TraceEntry]]
    allocator_settings: dict[str, object]
    external_annotations: list[Mark]
    workbench: Details
