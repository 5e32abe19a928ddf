"""Create snapshots of any size like those of a training run on CUDA: with shared frames and a caching allocator."""

import gc
import pickle
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SMALL, LARGE = 2 << 20, 20 << 20
"""Bytes of a segment for small blocks, and of one for large ones."""
DEPTH = 34
LAYERS = 24
ACTIVATIONS_A_LAYER = 6

Frames = list[dict[str, Any]]


@dataclass
class Allocator:
    """A caching allocator: each block size has its own segments, and the block freed last is reused first."""

    segments: list[dict[str, Any]] = field(default_factory=list)
    idle: dict[int, list[int]] = field(default_factory=dict)
    held: dict[int, tuple[int, int, Frames]] = field(default_factory=dict)
    top: int = 0x7F0000000000

    def take(self, requested: int, frames: Frames) -> int:
        size = -(-requested // 512) * 512
        idle = self.idle.setdefault(size, [])
        if not idle:
            self.grow(size, idle)
        address = idle.pop()
        self.held[address] = (size, requested, frames)
        return address

    def grow(self, size: int, idle: list[int]) -> None:
        total = max(SMALL if size <= 1 << 20 else LARGE, size) // size * size
        self.segments.append({"address": self.top, "total_size": total, "block": size})
        idle.extend(range(self.top + total - size, self.top - 1, -size))
        self.top += -(-total // SMALL) * SMALL

    def give(self, address: int) -> int:
        size, requested, _ = self.held.pop(address)
        self.idle[size].append(address)
        return requested

    def snapshot(self) -> list[dict[str, Any]]:
        return [self.segment(**segment) for segment in self.segments]

    def segment(self, address: int, total_size: int, block: int) -> dict[str, Any]:
        blocks = [self.block(at, block) for at in range(address, address + total_size, block)]
        used = [row for row in blocks if row["state"] == "active_allocated"]
        return {
            "device": 0,
            "address": address,
            "total_size": total_size,
            "allocated_size": sum(row["size"] for row in used),
            "active_size": sum(row["size"] for row in used),
            "requested_size": sum(row["requested_size"] for row in used),
            "stream": 0,
            "segment_type": "small" if block <= 1 << 20 else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": blocks,
        }

    def block(self, address: int, size: int) -> dict[str, Any]:
        _, requested, frames = self.held.get(address, (0, 0, []))
        state = "active_allocated" if address in self.held else "inactive"
        return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": frames}


@dataclass
class Job:
    """A training loop that allocates like a transformer: tensors saved in forward are freed in backward."""

    dice: random.Random
    leak: int = 0
    """Bytes that each step allocates and never frees."""
    allocator: Allocator = field(default_factory=Allocator)
    entries: list[dict[str, Any]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)
    clock: int = 1_700_000_000_000_000
    frames: dict[tuple[str, str, int], dict[str, Any]] = field(default_factory=dict)

    def frame(self, name: str, file: str, line: int) -> dict[str, Any]:
        key = (name, file, line)
        return self.frames.setdefault(key, {"name": name, "filename": file, "line": line})

    def stack(self, kind: str, layer: int, place: int) -> Frames:
        """Return a new list of shared frames, as a captured traceback gives; innermost first."""
        inner = {
            "forward": ("forward", "/job/model.py", 100 + place),
            "backward": ("torch::autograd::AccumulateGrad::apply" if place < 2 else "torch::autograd::Engine", "??", 0),
            "optimizer": ("_init_group", "/usr/lib/python3/site-packages/torch/optim/adamw.py", 90 + place),
        }[kind]
        calls = (self.frame(f"call_{i}", "/job/blocks.py", 1000 * layer + i) for i in range(DEPTH - 14))
        base = (self.frame(f"run_{kind}_{i}", "/job/train.py", 50 + i) for i in range(13))
        return [self.frame(*inner), *calls, *base]

    def write(self, action: str, address: int, size: int, frames: Frames) -> None:
        self.clock += 3
        self.entries.append({
            "action": action, "addr": address, "size": size, "stream": 0, "time_us": self.clock,
            "compile_context": b"N/A".decode(), "user_metadata": "", "frames": frames,
        })  # fmt: skip

    def alloc(self, size: int, kind: str, layer: int, place: int) -> int:
        frames = self.stack(kind, layer, place)
        address = self.allocator.take(size, frames)
        self.write("alloc", address, size, frames)
        return address

    def free(self, address: int, kind: str, layer: int) -> None:
        frames, size = self.stack(kind, layer, 9), self.allocator.give(address)
        self.write("free_requested", address, size, frames)
        self.write("free_completed", address, size, frames)

    def note(self, name: str, stage: str) -> None:
        self.clock += 3
        self.notes.append({"stage": stage, "name": name, "device": 0, "time_us": self.clock})

    def step(self, number: int) -> Iterator[None]:
        """Run one step; it yields after each layer, so that the trace can end there."""
        self.note(f"step#{number}", "START")
        saved: list[list[int]] = []
        for layer in range(LAYERS):
            saved.append(
                [self.alloc(self.size(place), "forward", layer, place) for place in range(ACTIVATIONS_A_LAYER)]
            )
            self.free(self.alloc(self.size(7), "forward", layer, 7), "forward", layer)
            yield
        for layer in reversed(range(LAYERS)):
            gradient = self.alloc(self.size(0), "backward", layer, 0)
            for address in saved[layer]:
                self.free(address, "backward", layer)
            self.free(gradient, "backward", layer)
            yield
        if number == 1:
            self.note("Optimizer.step#AdamW.step", "START")
            for layer in range(LAYERS):
                self.alloc(self.size(0), "optimizer", layer, 0)
            self.note("Optimizer.step#AdamW.step", "END")
        if self.leak:
            self.alloc(self.leak, "forward", 0, 8)
        self.note(f"step#{number}", "END")

    def size(self, place: int) -> int:
        return (1 << (12 + 2 * (place % 6))) * self.dice.randrange(1, 5) - self.dice.randrange(500)


def snapshot(entries: int, seed: int = 0, leak: int = 0) -> dict[str, Any]:
    """Return a snapshot with at least `entries` trace entries; the last step is unfinished, each leaks bytes."""
    return recorded(Job(random.Random(seed), leak), entries)


def recorded(job: Job, entries: int) -> dict[str, Any]:
    """Run steps of a job until it has written `entries` trace entries, and return its snapshot."""
    number = 0
    while len(job.entries) < entries:
        number += 1
        for _ in job.step(number):
            if len(job.entries) >= entries:
                break
    return document(job.allocator.snapshot(), job.entries, job.notes)


def document(
    segments: list[dict[str, Any]], entries: list[dict[str, Any]], notes: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "segments": segments,
        "device_traces": [entries],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
        "external_annotations": notes,
    }


def write(path: Path, entries: int, seed: int = 0, leak: int = 0) -> None:
    """Write a snapshot with at least `entries` trace entries, in PyTorch's format; each step leaks some bytes."""
    with path.open("wb") as file:
        pickle.dump(snapshot(entries, seed, leak), file, protocol=4)


if __name__ == "__main__":
    gc.disable()
    write(Path(sys.argv[1]), int(sys.argv[2]))
