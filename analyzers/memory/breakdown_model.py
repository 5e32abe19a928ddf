"""The structs of a memory breakdown: one device by segments, categories, tensors and layers. Sizes are bytes."""

import msgspec

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
