"""Define the structs of the JSON document `workbench.memory/1`: the results of a memory report about each device.

JSON names are fixed: if a field has a clearer name in Python, its JSON name is in `msgspec.field(name=...)`. Sizes are
bytes. An entry or an index is the index of an allocator event in the device's trace; -1 means "before the first".
"""

from enum import StrEnum

import msgspec

from analyzers.device_memory import MemoryPart
from analyzers.device_memory.nccl import NcclProcess
from analyzers.memory.breakdown_model import Breakdown


class MemoryClass(StrEnum):
    """The class of a verdict on memory: a kind of problem, or `HEALTHY` or `UNKNOWN`."""

    OOM = "oom"
    LEAK = "leak"
    FRAGMENTATION = "fragmentation"
    NEAR_LIMIT = "near_limit"
    HEALTHY = "healthy"
    UNKNOWN = "unknown"


class OomPattern(StrEnum):
    """The difference between the step that ran out of memory and the steps before it.

    `GROWTH`: stacks whose live bytes rose step by step fill a considerable part of the memory. `SPIKE`: the step needed
    far more than earlier steps. `STEADY`: it needed about as much. `UNKNOWN`: the trace has no earlier complete step.
    """

    GROWTH = "growth"
    SPIKE = "spike"
    STEADY = "steady"
    UNKNOWN = "unknown"


class MissingEvidence(StrEnum):
    """A kind of evidence that a snapshot does not record about a device, such as the stacks of its allocations."""

    HISTORY = "history"
    STACKS = "stacks"
    TIMES = "times"
    SEGMENTS = "segments"
    OLDEST_ENTRIES = "oldest_entries"
    ORIGIN_OF_OLDER_BLOCKS = "origin_of_older_blocks"
    SOME_ENTRIES = "some_entries"
    FAILING_STEP = "failing_step"


class UnusualKind(StrEnum):
    """A kind of memory use that is unusual without being a failure.

    `LATE_STATE`: optimizer state that only the first optimizer step allocated. `LOSS`: copies of the logits made for
    the loss. `KEPT`: activations that outlive the step that made them. `SPIKE`: a few steps that need far more memory
    than all others. `ATTENTION_SCORES`: softmax results that attention without a fused kernel keeps.
    """

    LATE_STATE = "late_state"
    LOSS = "loss"
    KEPT = "kept"
    SPIKE = "spike"
    ATTENTION_SCORES = "attention_scores"


class Remedy(StrEnum):
    """A change of settings whose saving can be estimated from a snapshot alone."""

    ACTIVATION_CHECKPOINTING = "activation_checkpointing"
    HALF_BATCH = "half_batch"
    EXPANDABLE_SEGMENTS = "expandable_segments"


class Oom(msgspec.Struct, frozen=True, kw_only=True):
    """The last allocation that failed, at the trace entry `index`.

    `categories` and `modules` have the bytes that were alive at this entry (only the largest modules). `pattern` is how
    the failing step differs from earlier steps; for `growth`, `since_step` is the step in which the growth began.
    `usual_peak_bytes` is the highest peak of the earlier complete steps, `usual_inputs_bytes` the most bytes that
    inputs had at the peaks of these steps; both are None if there are no such steps.
    """

    requested_bytes: int
    device_free_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    index: int
    step: int | None
    frames: list[str]
    categories: dict[str, int]
    modules: dict[str, int]
    pattern: OomPattern
    since_step: int | None
    usual_peak_bytes: int | None
    usual_inputs_bytes: int | None


class FreeBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """The free blocks of one CUDA stream in one memory pool when the snapshot was taken.

    `segment` is the address of the segment that they are in, None if all segments count. `split_bytes` of the free
    bytes are in segments that live blocks also use, so that they cannot be released to the device.
    """

    pool: str
    stream: int
    segment: int | None
    free_bytes: int
    split_bytes: int
    count: int = msgspec.field(name="pieces")
    largest_bytes: int


class Moment(StrEnum):
    """The moment at which fragmentation is judged: when the last request failed, or at the peak if none failed."""

    FAILED_REQUEST = "failed_request"
    PEAK = "peak"


class FreeMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory that the allocator has reserved but no block uses after trace entry `entry`, in bytes.

    After a failed request, only the memory counts that the request's CUDA stream and pool may use. `split_bytes` are
    in segments that live blocks also use, so that they cannot be given back to the device; `largest_bytes` is the
    largest free block.
    """

    moment: Moment
    entry: int
    reserved_bytes: int
    split_bytes: int
    largest_bytes: int
    device_free_bytes: int | None


class Fragmentation(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the reserved memory is allocated and how much is free, at the end of the trace.

    `segments` has the segments in use with the most free bytes. `inactive_split_bytes` are free in segments that live
    blocks also use. `rounding_bytes` are the bytes added to requests by rounding up. A CPU has no caching allocator, so
    for its recordings only `allocated_bytes` is meaningful. `request_bytes` is the size of the failed request; None if
    none failed. `decisive` is the free memory when that request failed, or at the peak; None without a history, or if
    the segments of that time are not all known.
    """

    reserved_bytes: int
    allocated_bytes: int
    rounding_bytes: int
    inactive_split_bytes: int
    largest_free_block_bytes: int
    request_bytes: int | None
    made_up_segments: bool
    pools: list[FreeBlocks]
    segments: list[FreeBlocks]
    decisive: FreeMemory | None = None
    expandable: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether segments are expandable; unset if none is."""


class TopStack(msgspec.Struct, frozen=True, kw_only=True):
    """The live bytes of one category that one stack allocated, in `count` blocks.

    `frames` begins with the user's innermost frame. `name` is a name for people that no other stack in the list has.
    `operation` is the operation of PyTorch or a library inside the user's frame, such as `bmm` or `backward of
    softmax`; empty if not known. `label` is the tensor's recorded name, if there is only one block.
    """

    bytes: int
    count: int
    category: str
    label: str
    frames: list[str]
    operation: str = ""
    name: str = ""


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """A stack whose live bytes grow over the last `steps` steps: by `total_bytes` in all.

    `first_step` is the first of these steps; None if steps are not annotated but inferred from recurring stacks.
    `forward_only` is set if no stack shows a backward pass or an optimizer in such steps.
    """

    bytes_per_step: int
    total_bytes: int
    steps: int
    first_step: int | None
    category: str
    frames: list[str]
    forward_only: bool | msgspec.UnsetType = msgspec.UNSET


class PoolUse(msgspec.Struct, frozen=True, kw_only=True):
    """The use of one memory pool by one CUDA stream: its segments at the end of the trace, and its bytes over time.

    `segments`, `reserved_bytes` and `allocated_bytes` are the values at the end; the other sizes are requested bytes.
    In files of torch before 2.12 the pool of a block is known only if its segment still exists at the end. Other blocks
    are in the pool `?`. Each of them may belong to any pool, so the peaks of the named pools are then lower bounds.
    """

    pool: str
    stream: int
    segments: int
    reserved_bytes: int
    allocated_bytes: int
    start_bytes: int
    peak_bytes: int
    peak_index: int
    end_bytes: int


class StreamUse(msgspec.Struct, frozen=True, kw_only=True):
    """The requested bytes of the blocks that one CUDA stream allocated: before, at the peak of and after the trace.

    `peak_index` is the trace entry that reached the peak; -1: before the trace.
    """

    stream: int
    start_bytes: int
    peak_bytes: int
    peak_index: int
    end_bytes: int


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """A request (trace entry `index`) for which the allocator first had to release cached segments of `freed_bytes`."""

    index: int
    freed_bytes: int


class Saving(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate of how much memory a change would free, such as activation checkpointing (`remedy`).

    The change affects `of_bytes` of the memory, such as all activations, and would free about `frees_bytes` of them.
    Both numbers are about the memory that was allocated when a request failed, or at the peak if none failed. `model`
    is a text on the assumptions of the estimate.
    """

    remedy: Remedy = msgspec.field(name="what")
    frees_bytes: int
    of_bytes: int
    model: str


class CategoryBasis(msgspec.Struct, frozen=True, kw_only=True):
    """A rule for guessing the category of blocks, and the bytes and number of the blocks at the peak that it decided.

    `because` is the evidence used by the rule, in words. `category` is empty for the rule of blocks tagged by the
    recorder, because each of these blocks has a category of its own.
    """

    rule: str
    category: str
    because: str
    confidence: float
    bytes: int
    blocks: int


class UnusualUse(msgspec.Struct, frozen=True, kw_only=True):
    """Memory use that is unusual without being a failure; `frames` is the stack that allocated most of it.

    `frees_bytes` is by how much a remedy would lower the peak; `step` is the step in which the memory was allocated
    (None: unknown). For a spike, `bytes` is the difference between the peak of its step and the highest peak of the
    other steps, and `larger_steps` of `compared_steps` steps are spikes; `forward_only` is set if no stack shows a
    backward pass or an optimizer in these steps.
    """

    kind: UnusualKind = msgspec.field(name="what")
    bytes: int
    frees_bytes: int
    step: int | None
    frames: list[str]
    larger_steps: int | msgspec.UnsetType = msgspec.UNSET
    compared_steps: int | msgspec.UnsetType = msgspec.UNSET
    forward_only: bool | msgspec.UnsetType = msgspec.UNSET


class StepUse(msgspec.Struct, frozen=True, kw_only=True):
    """A training step that is completely in the trace: its peak, and the live bytes by category at its end."""

    step: int
    first_entry: int
    last_entry: int
    peak_bytes: int
    peak_index: int
    end_bytes: int
    end_categories: dict[str, int]


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """The results about one device in one file.

    Allocated bytes are *requested* bytes, summed over the live blocks. `top_stacks` allocated most of the bytes alive
    at the peak, `end_stacks` most of those alive after the last trace entry. `steps` are the last complete steps; it is
    empty unless annotations such as `ProfilerStep#7` mark the steps. `listed_bytes` is the sum of the snapshot's list
    of blocks, if it differs from `end_allocated_bytes`. `account` divides the device's whole memory among PyTorch,
    libraries and other processes at the time of the snapshot; empty if the device's total was not recorded.
    `nccl_groups` is the number of process groups of this rank that use NCCL, `nccl` what its log shows of their memory.
    `limit_name` says which limit of the process `limit_bytes` is, such as `RLIMIT_DATA`; empty for the memory of a
    device, or if unknown.
    """

    path: str
    rank: int | None
    device: int
    step: int | None
    entries: int
    start_allocated_bytes: int
    peak_allocated_bytes: int
    peak_index: int
    end_allocated_bytes: int
    listed_bytes: int | msgspec.UnsetType = msgspec.UNSET
    reserved_bytes: int
    peak_reserved_bytes: int
    limit_bytes: int | None
    limit_name: str = ""
    pools: list[PoolUse]
    streams: list[StreamUse]
    retries: list[Retry]
    consistent: bool
    missing: list[MissingEvidence] = msgspec.field(name="lacking")
    oom: Oom | None
    categories: dict[str, int]
    categories_exact: bool
    categories_confidence: float
    categories_bases: list[CategoryBasis]
    fragmentation: Fragmentation
    top_stacks: list[TopStack]
    end_stacks: list[TopStack]
    steps: list[StepUse]
    growing: list[Growth]
    unusual: list[UnusualUse] = msgspec.field(name="notable")
    savings: list[Saving] = msgspec.field(name="estimates")
    account: list[MemoryPart] = []
    nccl_groups: int | msgspec.UnsetType = msgspec.UNSET
    nccl: NcclProcess | msgspec.UnsetType = msgspec.UNSET


class SettingChange(msgspec.Struct, frozen=True):
    """A changed setting, such as batch = 2x; `model` is a text on the assumptions for the computation of its effect."""

    name: str
    value: str
    model: str


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The peak of one device as recorded, and as predicted with all `changes` of settings."""

    path: str
    rank: int | None
    device: int
    step: int | None
    changes: list[SettingChange]
    peak_bytes: int
    new_peak_bytes: int
    new_peak_entry: int
    categories: dict[str, int]
    new_categories: dict[str, int]


class MemoryData(msgspec.Struct, frozen=True):
    """The field `data` of a memory report; `breakdown` and `what_if` are empty unless they were requested."""

    devices: list[Device]
    breakdown: list[Breakdown] = []
    what_if: list[WhatIf] = []
