"""Simulate PyTorch's CUDA caching allocator with its device, and write the snapshot that PyTorch would write.

The rules are those of c10/cuda/CUDACachingAllocator.cpp: sizes rounded to 512 bytes; small blocks (up to 1 MiB) from
segments of 2 MiB, blocks below 10 MiB from segments of 20 MiB, others from segments of their own, rounded to 2 MiB;
best fit in the pool of the stream; splitting and merging. If the device has too little memory left, all segments that
are wholly free are released, and the request is tried once more before it fails. `analyzers` has a simulator for its
replay, which this one does not use: a mistake in one must not confirm the other.
"""

from dataclasses import dataclass, field
from typing import Any

MIB, GIB = 1 << 20, 1 << 30
PoolId = tuple[int, int]
Frames = list[dict[str, Any]]


class OutOfMemoryError(Exception):
    """The simulated device cannot serve a request."""


@dataclass(eq=False)
class Block:
    """A part of a segment; `requested` is 0 while it is free."""

    address: int
    size: int
    segment: "Segment"
    requested: int = 0
    frames: Frames = field(default_factory=list)


@dataclass(eq=False)
class Segment:
    """A range of device memory in address order of its blocks."""

    address: int
    size: int
    stream: int
    pool: PoolId
    small: bool
    frames: Frames
    blocks: list[Block] = field(default_factory=list)

    @property
    def is_free(self) -> bool:
        return all(not block.requested for block in self.blocks)


@dataclass
class Device:
    """A GPU of `total` bytes, `outside` of which the allocator cannot get: context, NCCL, other processes.

    `max_split` is in bytes (0: no limit). `held_pools` are pools that a CUDA graph still uses, which are not released.
    """

    total: int = 80 * GIB
    outside: int = 600 * MIB
    expandable: bool = False
    max_split: int = 0
    index: int = 0
    segments: list[Segment] = field(default_factory=list)
    trace: list[dict[str, Any]] = field(default_factory=list)
    held_pools: set[PoolId] = field(default_factory=set)
    top: int = 0x7F00_0000_0000
    clock: int = 1_764_000_000_000_000

    @property
    def reserved(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def allocated(self) -> int:
        return sum(block.requested for segment in self.segments for block in segment.blocks)

    @property
    def free_bytes(self) -> int:
        return self.total - self.outside - self.reserved

    def alloc(self, size: int, frames: Frames, stream: int = 0, pool: PoolId = (0, 0)) -> Block:
        """Return a block for `size` bytes; raise OutOfMemoryError if there is none."""
        rounded = max(512, -(-size // 512) * 512)
        small = rounded <= MIB
        block = self._best_fit(rounded, small, stream, pool) or self._reserve(rounded, small, stream, pool, frames)
        if block is None:
            self.release_cached()
            block = self._reserve(rounded, small, stream, pool, frames)
        if block is None:
            self.clock += 9
            self._write("oom", self.free_bytes, size, stream, frames, pool)
            raise OutOfMemoryError
        self._split(block, rounded)
        block.requested, block.frames = size, frames
        self._write("alloc", block.address, size, stream, frames, pool)
        return block

    def free(self, block: Block, frames: Frames | None = None) -> None:
        """Free a block, and merge it with free neighbours."""
        segment, size, shared = block.segment, block.requested, frames or []
        for action in ("free_requested", "free_completed"):
            self._write(action, block.address, size, segment.stream, shared, segment.pool)
        block.requested, block.frames = 0, []
        at = segment.blocks.index(block)
        for position in (at + 1, at):
            if 0 < position < len(segment.blocks):
                low, high = segment.blocks[position - 1 : position + 1]
                if not low.requested and not high.requested:
                    low.size += high.size
                    del segment.blocks[position]

    def release_cached(self) -> None:
        """Return to the device what is wholly free: segments, or pages of expandable segments."""
        released = [segment for segment in self.segments if segment.pool not in self.held_pools]
        while self.expandable and any(self._unmap(segment) for segment in list(self.segments)):
            pass
        for segment in released:
            if not self.expandable and segment.is_free:
                self.segments.remove(segment)
                self._write("segment_free", segment.address, segment.size, segment.stream, segment.frames, segment.pool)

    def _best_fit(self, size: int, small: bool, stream: int, pool: PoolId) -> Block | None:
        fitting = [
            block
            for segment in self.segments
            if (segment.small, segment.stream, segment.pool) == (small, stream, pool)
            for block in segment.blocks
            if not block.requested and block.size >= size and self._may_take(size, block.size)
        ]
        return min(fitting, key=lambda block: (block.size, block.address), default=None)

    def _may_take(self, size: int, available: int) -> bool:
        """Return whether a request may take a block under `max_split_size_mb`."""
        if not self.max_split or available <= self.max_split:
            return True
        return size > self.max_split and available < size + 20 * MIB

    def _reserve(self, size: int, small: bool, stream: int, pool: PoolId, frames: Frames) -> Block | None:
        if self.expandable:
            return self._map(size, small, stream, pool, frames)
        total = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        if total > self.free_bytes:
            return None
        segment = Segment(self.top, total, stream, pool, small, frames)
        self.top += total + 2 * MIB
        segment.blocks.append(Block(segment.address, total, segment))
        self.segments.append(segment)
        self._write("segment_alloc", segment.address, total, stream, frames, pool)
        return segment.blocks[0]

    def _map(self, size: int, small: bool, stream: int, pool: PoolId, frames: Frames) -> Block | None:
        """Grow the last expandable segment of a pool, or begin one."""
        page = 2 * MIB if small else 20 * MIB
        own = [s for s in self.segments if (s.small, s.stream, s.pool) == (small, stream, pool)]
        segment = max(own, key=lambda s: s.address, default=None)
        last = segment.blocks[-1] if segment and not segment.blocks[-1].requested else None
        added = -(-(size - (last.size if last else 0)) // page) * page
        if added > self.free_bytes:
            return None
        if segment is None:
            segment = Segment(self.top, 0, stream, pool, small, frames)
            self.top += 1 << 40
            self.segments.append(segment)
        self._write("segment_map", segment.address + segment.size, added, stream, frames, pool)
        if last is None:
            last = Block(segment.address + segment.size, 0, segment)
            segment.blocks.append(last)
        last.size += added
        segment.size += added
        return last

    def _unmap(self, segment: Segment) -> bool:
        """Unmap the whole pages of one free block of an expandable segment; return whether there are any."""
        page = 2 * MIB if segment.small else 20 * MIB
        for block in segment.blocks:
            first = segment.address + -(-(block.address - segment.address) // page) * page
            last = segment.address + (block.address + block.size - segment.address) // page * page
            if not block.requested and first < last:
                self._write("segment_unmap", first, last - first, segment.stream, segment.frames, segment.pool)
                self._divide(segment, block, first, last)
                return True
        return False

    def _divide(self, segment: Segment, block: Block, first: int, last: int) -> None:
        at = segment.blocks.index(block)
        before, after = segment.blocks[:at], segment.blocks[at + 1 :]
        end = segment.address + segment.size
        if block.address < first:
            before.append(Block(block.address, first - block.address, segment))
        self.segments.remove(segment)
        if before:
            segment.blocks, segment.size = before, first - segment.address
            self.segments.append(segment)
        if last < end:
            part = Segment(last, end - last, segment.stream, segment.pool, segment.small, segment.frames)
            if last < block.address + block.size:
                part.blocks.append(Block(last, block.address + block.size - last, part))
            for moved in after:
                moved.segment = part
            part.blocks += after
            self.segments.append(part)

    def _split(self, block: Block, size: int) -> None:
        segment, rest = block.segment, block.size - size
        enough = rest >= 512 if segment.small or self.expandable else rest > MIB
        if enough and not (self.max_split and size > self.max_split):
            at = segment.blocks.index(block)
            segment.blocks.insert(at + 1, Block(block.address + size, rest, segment))
            block.size = size

    def _write(self, action: str, address: int, size: int, stream: int, frames: Frames, pool: PoolId) -> None:
        self.clock += 7
        where = "device_free" if action == "oom" else "addr"
        self.trace.append(
            {"action": action, where: address, "size": size, "stream": stream, "time_us": self.clock,
             "compile_context": "N/A", "user_metadata": "", "pool_id": pool, "frames": frames}
        )  # fmt: skip

    def segments_as_recorded(self) -> list[dict[str, Any]]:
        """Return the segments as `torch.cuda.memory_snapshot` gives them."""
        return [self._segment(segment) for segment in sorted(self.segments, key=lambda s: s.address)]

    def _segment(self, segment: Segment) -> dict[str, Any]:
        used = [block for block in segment.blocks if block.requested]
        return {
            "device": self.index, "address": segment.address, "total_size": segment.size,
            "allocated_size": sum(b.size for b in used), "active_size": sum(b.size for b in used),
            "requested_size": sum(b.requested for b in used), "stream": segment.stream,
            "segment_type": "small" if segment.small else "large", "segment_pool_id": segment.pool,
            "is_expandable": self.expandable, "frames": segment.frames,
            "blocks": [
                {"address": b.address, "size": b.size, "requested_size": b.requested,
                 "state": "active_allocated" if b.requested else "inactive", "frames": b.frames}
                for b in segment.blocks
            ],
        }  # fmt: skip


SINCE = {"time_us": (2, 2), "compile_context": (2, 8), "user_metadata": (2, 10), "pool_id": (2, 12)}
"""The PyTorch version since which an entry of a trace has a key."""


def snapshot(
    devices: list[Device],
    *,
    version: tuple[int, int] = (2, 9),
    configuration: str = "",
    annotations: list[dict[str, Any]] | None = None,
    lost: int = 0,
    trace: bool = True,
) -> dict[str, Any]:
    """Return the snapshot that PyTorch `version` writes of these devices; `lost` is the number of entries overwritten.

    `configuration` is the value of `PYTORCH_CUDA_ALLOC_CONF`.
    """
    dropped = {key for key, since in SINCE.items() if version < since}
    traces = [
        [{key: value for key, value in entry.items() if key not in dropped} for entry in device.trace[lost:]]
        if trace
        else []
        for device in devices
    ]
    content: dict[str, Any] = {
        "segments": [segment for device in devices for segment in device.segments_as_recorded()],
        "device_traces": traces,
    }
    if version >= (2, 3):
        content["allocator_settings"] = settings(configuration, devices[0])
    if version >= (2, 5):
        content["external_annotations"] = annotations or []
    return content


def settings(configuration: str, device: Device) -> dict[str, Any]:
    """Return the allocator's settings as a snapshot has them."""
    threshold = 0.0
    for option in configuration.split(","):
        name, _, value = option.partition(":")
        if name == "garbage_collection_threshold":
            threshold = float(value)
    return {
        "PYTORCH_CUDA_ALLOC_CONF": configuration,
        "max_split_size": device.max_split or -1,
        "garbage_collection_threshold": threshold,
        "expandable_segments": device.expandable,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "roundup_power2_divisions": {str(1 << power): 0 for power in range(16)},
    }
