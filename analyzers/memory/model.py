"""Define the structs of the JSON document `workbench.memory/1`: the results of a memory report about each device.

JSON names are fixed: if a field has a clearer name in Python, its JSON name is in `msgspec.field(name=...)`. Sizes are
bytes. An entry or an index is the index of an allocator event in the device's trace; -1 means "before the first".
"""

from enum import StrEnum

import msgspec

from analyzers.device_memory import MemoryPart, NcclProcess
from analyzers.holders import Holder
from analyzers.memory.job import Job


class SegmentKind(msgspec.Struct, frozen=True):
    """All segments of one kind in the snapshot: segments for small blocks, for large blocks, or expandable ones.

    `segments` is their number. The allocator has reserved `reserved_bytes` for them; these are divided into allocated
    and free bytes.
    """

    kind: str
    segments: int
    reserved_bytes: int
    allocated_bytes: int
    free_bytes: int


class CategoryTensors(msgspec.Struct, frozen=True):
    """The tensors of one category that are alive at the peak.

    `tensors` is their number, `bytes` their size, and `largest` has the names of the largest ones. The bytes of all
    categories add up to the peak.
    """

    name: str
    bytes: int
    tensors: int
    largest: list[str]


class HighWaterMark(msgspec.Struct, frozen=True):
    """The most live bytes that one category of short-lived memory, such as activations, ever had.

    `entry` is the trace entry at which it had them (-1: before the trace), which need not be the peak of all memory.
    """

    name: str
    bytes: int
    entry: int


class LiveTensor(msgspec.Struct, frozen=True):
    """A block of memory that is alive at the peak.

    `name` is its recorded name; if none is recorded, it is the line of code that allocated the block.
    """

    name: str
    bytes: int
    category: str


class LayerActivations(msgspec.Struct, frozen=True):
    """The bytes of activations that one layer keeps at the peak for the backward pass."""

    layer: str
    bytes: int


class Activations(msgspec.Struct, frozen=True):
    """The bytes of activations per layer: predicted by a formula, and measured at the peak.

    `theoretical_bytes_per_layer` is the prediction for one transformer layer of the `job`
    (`Job.activation_bytes_per_layer`). Both are None if there is no run.json. `layers` has the measured bytes.
    """

    job: Job | None
    theoretical_bytes_per_layer: int | None
    layers: list[LayerActivations]


class Overhead(msgspec.Struct, frozen=True):
    """The memory that a device uses, or on a CPU the process, and how much of it PyTorch's allocator tracks.

    `of` is `device` or `process`. `used_bytes` is the sum of `tracked_bytes` and `untracked_bytes`. `made_of` lists
    what the untracked bytes usually are.
    """

    of: str
    used_bytes: int
    tracked_bytes: int
    untracked_bytes: int
    made_of: str


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one device in one snapshot, divided in several ways: by segments, categories, tensors and layers.

    `peak_bytes` is the peak of the live bytes. `segments` divides the reserved memory at the snapshot. `categories`
    (`holders` in JSON) and `tensors` divide the live bytes at the peak; `high_water` has the peaks of single
    categories. `activations` has the bytes of each layer, and `overhead` the memory outside PyTorch's allocator (None:
    not recorded).
    """

    path: str
    rank: int | None
    device: int
    step: int | None
    peak_bytes: int
    segments: list[SegmentKind]
    categories: list[CategoryTensors] = msgspec.field(name="holders")
    high_water: list[HighWaterMark]
    tensors: list[LiveTensor]
    activations: Activations
    overhead: Overhead | None


class DifferenceKind(StrEnum):
    """How a rank that ran out of memory differs from the others.

    `BATCH`: tensors of nearly all lines are larger. `PART`: those of some lines are larger, those of others are equal.
    `OWN`: it allocated memory in lines that are in no recording of another rank. `MORE`: it keeps more tensors of the
    same size alive. `LAYERS`: it also has more parameters. `NO_RECOMPUTATION`: it keeps activations that the others
    recompute. `OUTSIDE`: PyTorch could get less of its device than of the others' devices.
    """

    BATCH = "batch"
    PART = "part"
    OWN = "own"
    MORE = "more"
    LAYERS = "layers"
    NO_RECOMPUTATION = "no_recomputation"
    OUTSIDE = "outside"


class Purpose(StrEnum):
    """What lines that only one rank ran are for, by the names of their functions."""

    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    AVERAGE = "average"
    OUTPUT = "output"
    UNKNOWN = "unknown"


class RankDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How a rank that ran out of memory differs from the `ranks` with which it was compared.

    `bytes` is what it needs more than any of them. `ratio` is how many times as large or as many its tensors are (None:
    it has tensors that the others have not). `frames` is the stack with most of these bytes, `line` the line in it that
    says most about them. `usual_bytes` is what the others have in place of `own_bytes`: state of the model, or memory
    that PyTorch reserved. `is_new` is whether the rank's own earlier steps did not have the difference (None: unknown).
    `until_step` is the step after which the earliest recording of the others ends.
    """

    kind: DifferenceKind
    ranks: list[int]
    bytes: int
    ratio: float | None = None
    frames: list[str] = []
    line: str = ""
    purpose: Purpose = Purpose.UNKNOWN
    own_bytes: int = 0
    usual_bytes: int = 0
    is_new: bool | None = None
    until_step: int | None = None


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

    `growth`: some stacks allocate memory that grows from step to step, and now fills a considerable part of the device.
    `spike`: the step needed far more memory than earlier steps. `steady`: it needed about as much. `unknown`: the trace
    has no earlier complete step to compare with.
    """

    GROWTH = "growth"
    SPIKE = "spike"
    STEADY = "steady"
    UNKNOWN = "unknown"


class MissingEvidence(StrEnum):
    """A kind of evidence that a snapshot does not have about a device.

    `history`: there are no trace entries, so only the state at the snapshot is known. `stacks` and `times`: no trace
    entry has one. `segments`: there is no list of segments. `oldest_entries`: the ring buffer of the recorder was full,
    and its oldest entries were overwritten. `origin_of_older_blocks`: nothing shows where blocks were allocated that
    are older than the trace. `some_entries`: the trace does not lead to the blocks of the snapshot, so entries are
    missing. `failing_step`: the step that ran out of memory was not recorded.
    """

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

    `late_state`: optimizer state that only the first optimizer step allocated. `loss`: copies of the logits that the
    loss makes. `kept`: activations that outlive the step that made them. `spike`: a few steps that need far more memory
    than all others. `attention_scores`: the results of softmax, which attention without a fused kernel keeps.
    `attention_fallback`: what PyTorch's attention operator keeps when it takes its math kernel. `unused_graph`: what a
    forward pass saved for a backward pass that never came.
    """

    LATE_STATE = "late_state"
    LOSS = "loss"
    KEPT = "kept"
    SPIKE = "spike"
    ATTENTION_SCORES = "attention_scores"
    ATTENTION_FALLBACK = "attention_fallback"
    LATE_FREES = "late_frees"
    UNUSED_GRAPH = "unused_graph"


class Remedy(StrEnum):
    """A change of settings whose saving can be estimated from a snapshot alone.

    `half_batch` is half of the local batch size; `expandable_segments` is the setting of PyTorch's allocator.
    """

    ACTIVATION_CHECKPOINTING = "activation_checkpointing"
    HALF_BATCH = "half_batch"
    EXPANDABLE_SEGMENTS = "expandable_segments"


class AvoidableKind(StrEnum):
    """A use of memory that a particular change of the code avoids, where a request failed.

    `optimizer_copies`: the tensors that a multi-tensor optimizer step returns for all parameters at once.
    `evaluation_graph`: activations that an evaluation keeps for a backward pass that never comes. `evaluation`: the
    other memory of an evaluation. `checkpoint`: a state that is gathered or copied to be saved. `loaded`: a checkpoint
    that is loaded onto the device. `average`: a moving average of the weights. `offloaded`: tensors that are brought
    back from the host ahead of their use. `loss`: the logits and what the loss makes of them. `attention_scores`:
    scores of attention that is written out. `gathered`: parameters that FSDP gathered. `buckets`: the buckets of DDP,
    beside gradients that have memory of their own. `model`: the largest of several models.
    """

    OPTIMIZER_COPIES = "optimizer_copies"
    EVALUATION_GRAPH = "evaluation_graph"
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    LOADED = "loaded"
    AVERAGE = "average"
    OFFLOADED = "offloaded"
    LOSS = "loss"
    ATTENTION_SCORES = "attention_scores"
    GATHERED = "gathered"
    BUCKETS = "buckets"
    MODEL = "model"


class AvoidableUse(msgspec.Struct, frozen=True, kw_only=True):
    """Memory in use when a request failed, the request included, that a particular change of the code would avoid.

    `frames` is the stack with most of these bytes, and `line` the frame in it that shows the use (empty: the first
    one). For a model, `of_bytes` are the parameters of all models.
    """

    kind: AvoidableKind = msgspec.field(name="what")
    bytes: int
    frames: list[str]
    line: str = ""
    of_bytes: int | msgspec.UnsetType = msgspec.UNSET


class CaughtRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A failed request that the program survived: it went on to allocate memory as before.

    `index` is the trace entry of the last such request, `count` the number of them. `went_on_to` is the step after
    which a later snapshot of the same rank was written (unset: this snapshot itself shows that the program went on).
    """

    requested_bytes: int
    count: int
    index: int
    frames: list[str]
    went_on_to: int | msgspec.UnsetType = msgspec.UNSET


class Oom(msgspec.Struct, frozen=True, kw_only=True):
    """The last allocation that failed, and the memory at this moment; all sizes are in bytes.

    `index` is the trace entry of the failed request, and `step` its training step (None: unknown). `frames` is the
    stack that made the request, innermost frame first. The request was for `requested_bytes`; PyTorch had reserved
    `reserved_bytes`, `allocated_bytes` of them were allocated, and the device still had `device_free_bytes`.
    `categories` and `modules` divide the allocated bytes; `modules` has only the largest modules.

    `pattern` is how the step differs from earlier steps. For `growth`, `since_step` is the step in which the growth
    began. `usual_peak_bytes` is the highest peak of the earlier complete steps, and `usual_inputs_bytes` the most bytes
    that inputs had at the peaks of these steps. Both are None if there are no such steps.
    `difference` is how the rank differs from those that did not fail; it is unset if it does not differ, or if there
    are no recordings of others. `avoidable` is what a particular change of the code would avoid, what the failing line
    was doing first; it is unset if nothing is known.
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
    difference: RankDifference | msgspec.UnsetType = msgspec.UNSET
    avoidable: list[AvoidableUse] | msgspec.UnsetType = msgspec.UNSET


class FreeBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """The free blocks of one CUDA stream in one memory pool when the snapshot was taken.

    `count` (`pieces` in JSON) is the number of free blocks, `free_bytes` their sum, and `largest_bytes` the largest
    one. `split_bytes` of the free bytes are in segments that live blocks also use, so that they cannot be returned to
    the device. `segment` is the address of the segment with these blocks (None: the blocks of all segments).
    """

    pool: str
    stream: int
    segment: int | None
    free_bytes: int
    split_bytes: int
    count: int = msgspec.field(name="pieces")
    largest_bytes: int


class Moment(StrEnum):
    FAILED_REQUEST = "failed_request"
    PEAK = "peak"


class FreeMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory that the allocator has reserved but no block uses after trace entry `entry`, in bytes.

    `moment` says which moment this is. `reserved_bytes` is all reserved memory, and `largest_bytes` the largest free
    block. `split_bytes` are free in segments that live blocks also use, so that they cannot be returned to the device.
    After a failed request, only free memory counts that the CUDA stream and the pool of the request may use.
    `device_free_bytes` is the memory that the device had left (None: no request failed).
    """

    moment: Moment
    entry: int
    reserved_bytes: int
    split_bytes: int
    largest_bytes: int
    device_free_bytes: int | None


class Fragmentation(msgspec.Struct, frozen=True, kw_only=True):
    """The reserved memory at the end of the trace: how much of it is allocated, and how much is free in which blocks.

    `allocated_bytes` of `reserved_bytes` are in use by blocks; `rounding_bytes` of these were added when requests were
    rounded up. `inactive_split_bytes` are free in segments that live blocks also use, so that they cannot be returned
    to the device. `largest_free_block_bytes` is the largest free block. `pools` has the free blocks of each pool and
    stream; `segments` has the segments with the most free bytes among those in use.

    `request_bytes` is the size of the failed request (None: none failed). `decisive` is the free memory when this
    request failed, or at the peak if none failed; None without a history, or if the segments of that time are not all
    known. `expandable` says whether segments are expandable. `made_up_segments` is true for recordings of a CPU, which
    has no caching allocator: then only `allocated_bytes` is meaningful.
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
    """Whether some segments are expandable; unset if none is."""


class TopStack(msgspec.Struct, frozen=True, kw_only=True):
    """The live bytes of one category that were allocated with the same call stack, in `count` blocks.

    `frames` is the stack, beginning with the innermost frame of the user's code. `operation` is the operation of
    PyTorch or of a library that this frame called, such as `bmm` or `backward of softmax` (empty: not known). `name` is
    a readable name, which no other stack in the list has. `label` is the recorded name of the tensor, if there is only
    one block.
    """

    bytes: int
    count: int
    category: str
    label: str
    frames: list[str]
    operation: str = ""
    name: str = ""


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """A call stack whose live bytes grow from step to step, as a leak does.

    They grow by `bytes_per_step` in each of the last `steps` steps, and by `total_bytes` in all. `first_step` is the
    first of these steps; None if the steps are not marked in the trace, but inferred from stacks that recur.
    `forward_only` is true if nothing in such inferred steps shows a backward pass or an optimizer, as in inference;
    otherwise it is unset.
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

    `segments`, `reserved_bytes` and `allocated_bytes` are the values at the end of the trace. The other sizes are
    requested bytes, without rounding: before the trace, at the peak and at the end. `peak_index` is the trace entry
    with the peak (-1: before the trace).

    In files of torch before 2.12, the pool of a block is known only if its segment still exists at the end. All other
    blocks are listed under the pool `?`. Since each of them may belong to any pool, the peaks of the named pools are
    then lower bounds.
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
    """The requested bytes of the blocks that one CUDA stream allocated: before the trace, at its peak and at its end.

    `peak_index` is the trace entry with the peak (-1: before the trace).
    """

    stream: int
    start_bytes: int
    peak_bytes: int
    peak_index: int
    end_bytes: int


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """A request for which the allocator first had to return cached segments to the device, which is slow.

    `index` is the trace entry of the request, and `freed_bytes` is the size of the returned segments.
    """

    index: int
    freed_bytes: int


class Saving(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate of how much memory a change of settings would free.

    `remedy` (`what` in JSON) is the change, such as activation checkpointing. It affects `of_bytes` of the memory, such
    as all activations, and would free about `frees_bytes` of them. Both numbers are about the memory that was allocated
    when a request failed, or at the peak if none failed. `model` is a text on the assumptions of the estimate.
    """

    remedy: Remedy = msgspec.field(name="what")
    frees_bytes: int
    of_bytes: int
    model: str


class CategoryBasis(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that guesses the category of blocks, and the blocks at the peak whose category it decided.

    `rule` is the name of the rule, and `because` is the evidence that it uses, in words. `bytes` and `blocks` are the
    size and the number of the blocks. `confidence` is from 0 to 1. `category` is empty for the rule about blocks that
    the recorder tagged, because each of these blocks has a category of its own.
    """

    rule: str
    category: str
    because: str
    confidence: float
    bytes: int
    blocks: int


class UnusualUse(msgspec.Struct, frozen=True, kw_only=True):
    """Memory use that is unusual without being a failure; `kind` (`what` in JSON) says which.

    `bytes` is the memory that is used in this way, and `frees_bytes` is by how much a remedy would lower the peak.
    `step` is the step in which the memory was allocated (None: unknown). `frames` is the stack that allocated most of
    it.

    For a spike, `bytes` is the difference between the peak of its step and the highest peak of the other steps, and
    `larger_steps` of `compared_steps` steps are spikes. `forward_only` is true if nothing in these steps shows a
    backward pass or an optimizer. The three fields are unset for other kinds.
    `with_dropout` is whether stacks of the math kernel show a dropout.
    """

    kind: UnusualKind = msgspec.field(name="what")
    bytes: int
    frees_bytes: int
    step: int | None
    frames: list[str]
    larger_steps: int | msgspec.UnsetType = msgspec.UNSET
    compared_steps: int | msgspec.UnsetType = msgspec.UNSET
    forward_only: bool | msgspec.UnsetType = msgspec.UNSET
    with_dropout: bool | msgspec.UnsetType = msgspec.UNSET


class StepUse(msgspec.Struct, frozen=True, kw_only=True):
    """A training step that is completely in the trace, with its peak and the live bytes at its end.

    `first_entry` and `last_entry` are the trace entries with which it begins and ends. `peak_bytes` is the highest
    number of live bytes in between, and `peak_index` the entry that reached it. `end_bytes` are alive at the end of the
    step, and `end_categories` divides them by category.
    """

    step: int
    first_entry: int
    last_entry: int
    peak_bytes: int
    peak_index: int
    end_bytes: int
    end_categories: dict[str, int]


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """The results about one device in one memory snapshot; sizes are in bytes, and an index is that of a trace entry.

    `rank` and `step` are None if they are not known. `entries` is the number of trace entries. Allocated bytes are
    requested bytes, without rounding, summed over the live blocks: before the trace (`start_allocated_bytes`), at the
    peak, which is at entry `peak_index` (-1: before the trace), and at the end. `consistent` says whether the trace
    leads to the blocks of the snapshot. If it does not, entries are missing, sizes over time are approximate, and
    `listed_bytes` is the sum of the blocks of the snapshot. `missing` (`lacking` in JSON) names the evidence that the
    snapshot does not have.

    `reserved_bytes` is the memory that the allocator holds at the end, `peak_reserved_bytes` the most that it held.
    `limit_bytes` is the memory of the device, or a limit of the process (None: unknown); `limit_name` names that limit,
    such as `RLIMIT_DATA` (empty: it is the memory of the device, or unknown). `retries` are the requests for which the
    allocator had to return cached segments first. `pools` and `streams` have the use of each memory pool and CUDA
    stream, and `fragmentation` shows how much of the reserved memory is free. `oom` is the last failed request (None:
    none failed).

    `categories` has the bytes of each category at the peak. If `categories_exact` is true, the recorder wrote the
    category of each block; otherwise categories are guessed by the rules in `categories_bases`, with a mean confidence
    of `categories_confidence`. `top_stacks` allocated most of the bytes alive at the peak, `end_stacks` most of those
    alive at the end. `steps` are the last complete steps; empty unless annotations such as `ProfilerStep#7` mark the
    steps. `growing` has the stacks that look like a leak. `unusual` (`notable` in JSON) has unusual uses of memory, and
    `savings` (`estimates` in JSON) what changes of settings would free.

    `account` divides the whole memory of the device among PyTorch, libraries and other processes when the snapshot was
    taken; empty if the total is not known. `nccl_groups` is the number of process groups of this rank that use NCCL,
    and `nccl` is what NCCL's log shows about its memory; each is unset if it is not recorded. `caught` is a failed
    request that the program survived (unset: none, or one that it did not survive is in `oom`). `idle_threshold` is the
    allocator's garbage_collection_threshold if no setting in the snapshot gives it a limit to work with.
    `older_blocks_known` is true if the recorder of a CPU's memory counted what was allocated before its trace begins,
    so that the live bytes of several snapshots of one run can be compared (unset: it did not, or the snapshot is of
    CUDA, where they always can). `holders` are what the recorder found to keep the tensors that each step leaves, the
    largest growth first (unset: it was not asked to look for them).
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
    caught: CaughtRequest | msgspec.UnsetType = msgspec.UNSET
    idle_threshold: str | msgspec.UnsetType = msgspec.UNSET
    older_blocks_known: bool | msgspec.UnsetType = msgspec.UNSET
    holders: list[Holder] | msgspec.UnsetType = msgspec.UNSET

    @property
    def exceeds_segments(self) -> bool:
        """Whether the live bytes at the trace's peak exceed the largest number of bytes reserved by the allocator.

        It is False if the segments are not recorded, or if they are not real (on a CPU).
        """
        made_up = self.fragmentation.made_up_segments or MissingEvidence.SEGMENTS in self.missing
        return not made_up and 0 < self.peak_reserved_bytes < self.peak_allocated_bytes


class SettingChange(msgspec.Struct, frozen=True):
    """A changed setting, such as `batch` with the value `2x`.

    `model` is a text on the assumptions by which the effect of the change was computed.
    """

    name: str
    value: str
    model: str


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The peak memory of one device as recorded, and as predicted if all `changes` of settings were made.

    `peak_bytes` and `categories` are the recorded peak, and `new_peak_bytes` and `new_categories` the predicted one, in
    bytes. `new_peak_entry` is the trace entry at which the predicted peak is reached.
    """

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
    """The field `data` of the JSON document `workbench.memory/1`: the results about each device of each snapshot.

    `breakdown` and `what_if` are empty unless they were requested.
    """

    devices: list[Device]
    breakdown: list[Breakdown] = []
    what_if: list[WhatIf] = []
