"""The structs of a memory breakdown: one device by segments, categories, tensors and layers. Sizes are bytes."""

import msgspec

from analyzers.memory.job import Job


class SegmentKind(msgspec.Struct, frozen=True):
    """All segments of one kind (small or large blocks, expandable) in the snapshot: their number, and their bytes."""

    kind: str
    segments: int
    reserved_bytes: int
    allocated_bytes: int
    free_bytes: int


class CategoryTensors(msgspec.Struct, frozen=True):
    """The tensors of one category that are alive at the peak; `largest` has the names of the largest of them.

    The bytes of all categories sum to the peak.
    """

    name: str
    bytes: int
    tensors: int
    largest: list[str]


class HighWaterMark(msgspec.Struct, frozen=True):
    """The highest live bytes of one category of short-lived memory, and the trace entry that reached them."""

    name: str
    bytes: int
    entry: int


class LiveTensor(msgspec.Struct, frozen=True):
    """A block that is alive at the peak; `name` is its recorded name, or else the line that allocated it."""

    name: str
    bytes: int
    category: str


class LayerActivations(msgspec.Struct, frozen=True):
    """The bytes of activations that one layer keeps at the peak for the backward pass."""

    layer: str
    bytes: int


class Activations(msgspec.Struct, frozen=True):
    """Activations per layer: predicted by a formula (`Job.activation_bytes_per_layer`), and measured at the peak.

    `job` and the prediction are None without run.json.
    """

    job: Job | None
    theoretical_bytes_per_layer: int | None
    layers: list[LayerActivations]


class Overhead(msgspec.Struct, frozen=True):
    """The bytes that the device (or, on a CPU, the process) uses, and the part that PyTorch's allocator tracks.

    `of` is `device` or `process`; `made_of` lists the usual contents of the bytes that the allocator does not track.
    """

    of: str
    used_bytes: int
    tracked_bytes: int
    untracked_bytes: int
    made_of: str


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one device in one file, divided by segments, categories, tensors and layers."""

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
