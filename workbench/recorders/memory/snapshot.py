"""Define the format of a memory snapshot: the format of `torch.cuda.memory._snapshot()`, with additional fields."""

from typing import TypedDict


class Frame(TypedDict):
    """A source line on a call stack; for operations of PyTorch, `filename` is empty."""

    name: str
    filename: str
    line: int


class TraceEntry(TypedDict, total=False):
    """An event of a device's allocator, such as an allocation or a free.

    PyTorch's format has no `category`. Its field `user_metadata` holds the label, such as the name of the tensor.
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
    """Return an entry with the category `unknown`, which the caller puts first in `trace`.

    PyTorch's viewer shows categories only if an entry has the category `unknown`.
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
    """The fields that this project adds to a snapshot, under the key `workbench`.

    `limit_bytes` is the memory of the device. On a CPU it is a limit of the process, and `limit_name` is its name, such
    as `RLIMIT_DATA`. `step` is the last finished step. `exact` says whether hooks recorded the categories of blocks.
    `blocks` is {address: [category, label]} of blocks that were allocated before the trace begins;
    `older_blocks_known` says that all that the process holds are in the segments. `lost_notes` counts
    notes of hooks that were dropped or whose block is unknown. `device_used_bytes` is in use on the device; this
    process uses `device_process_bytes` of it, if the driver reports that. `nccl_groups` counts the rank's process
    groups with NCCL.
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
    older_blocks_known: bool
    blocks: dict[int, list[str]]
    device_used_bytes: int
    device_process_bytes: int
    nccl_groups: int


class Snapshot(TypedDict, total=False):
    """A memory snapshot: the segments, and for each device its trace, which is the history of allocations."""

    segments: list[Segment]
    device_traces: list[list[TraceEntry]]
    allocator_settings: dict[str, object]
    external_annotations: list[Mark]
    workbench: Details
