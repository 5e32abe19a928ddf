"""The structs of what is answered only when asked for: the breakdown table, and what would be if."""

import msgspec

from analyzers.memory.reading.job import Job


class Segments(msgspec.Struct, frozen=True):
    """One kind of memory that the allocator has taken, at the end."""

    kind: str
    segments: int
    reserved_bytes: int
    allocated_bytes: int
    free_bytes: int


class Holder(msgspec.Struct, frozen=True):
    """A category at the peak and its largest tensors; all holders sum to the peak."""

    name: str
    bytes: int
    tensors: int
    largest: list[str]


class HighWater(msgspec.Struct, frozen=True):
    """The most that a passing category ever held, and after which entry."""

    name: str
    bytes: int
    entry: int


class TensorHeld(msgspec.Struct, frozen=True):
    """One block at the peak: the name that was noted, else the line that made it."""

    name: str
    bytes: int
    category: str


class LayerActivations(msgspec.Struct, frozen=True):
    """What a layer's tensors keep at the peak for the backward pass."""

    layer: str
    bytes: int


class Activations(msgspec.Struct, frozen=True):
    """By the formula of `Job.activation_bytes_per_layer` (None without run.json), and measured at the peak."""

    job: Job | None
    theoretical_bytes_per_layer: int | None
    layers: list[LayerActivations]


class Overhead(msgspec.Struct, frozen=True):
    """What the device (or, on CPU, the process) uses, against what the allocator (the tensors) account for."""

    of: str
    used_bytes: int
    tracked_bytes: int
    untracked_bytes: int
    made_of: str


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """The table of one device of one file."""

    path: str
    rank: int | None
    device: int
    step: int | None
    peak_bytes: int
    segments: list[Segments]
    holders: list[Holder]
    high_water: list[HighWater]
    tensors: list[TensorHeld]
    activations: Activations
    overhead: Overhead | None


class Change(msgspec.Struct, frozen=True):
    """One thing set otherwise, and the model of what that does to memory."""

    name: str
    value: str
    model: str


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The peak of one device of one file as it was, and as it would be with all `changes` made."""

    path: str
    rank: int | None
    device: int
    step: int | None
    changes: list[Change]
    peak_bytes: int
    new_peak_bytes: int
    new_peak_entry: int
    categories: dict[str, int]
    new_categories: dict[str, int]
