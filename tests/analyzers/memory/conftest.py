"""Small snapshots with a known history, made by a simulated allocator that writes PyTorch's format."""

import gzip
import json
import pickle
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from analyzers import run
from wild import recorded

BASE = 0x7F0000000000


def frame(name, file="train/model.py", line=1):
    return {"name": name, "filename": file, "line": line}


@dataclass
class Recording:
    """The recording of a simulated device. `alloc` and `free` add trace entries; blocks of `older` exist before the
    first.
    """

    entries: list = field(default_factory=list)
    live: dict = field(default_factory=dict)
    notes: list = field(default_factory=list)
    ours: dict = field(default_factory=dict)
    clock: int = 1_700_000_000_000_000
    segment_bytes: int = 1 << 30
    device: int = 0

    def write(self, action, addr, size, frames, **more):
        self.clock += 3
        where = {"device_free": addr} if action == "oom" else {"addr": addr}
        entry = {"action": action, **where, "size": size, "stream": 0, "time_us": self.clock, "frames": frames}
        self.entries.append(entry | more)

    def place(self, size):
        """Return the lowest free address for a block, as an allocator that reuses addresses would."""
        at = BASE + (self.device << 40)
        for address, (held, _) in sorted(self.live.items()):
            if address - at >= size:
                break
            at = address + held
        return at

    def older(self, size, frames=()):
        address = self.place(size)
        self.live[address] = (size, list(frames))
        return address

    def alloc(self, size, frames=(), **more):
        address = self.place(size)
        self.live[address] = (size, list(frames))
        self.write("alloc", address, size, self.live[address][1], **more)
        return address

    def free(self, address, frames=()):
        size, _ = self.live.pop(address)
        shared = list(frames)
        self.write("free_requested", address, size, shared)
        self.write("free_completed", address, size, shared)

    def oom(self, size, left, frames):
        self.write("oom", left, size, list(frames))

    def note(self, name, stage):
        self.clock += 3
        self.notes.append({"stage": stage, "name": name, "device": self.device, "time_us": self.clock})

    def segment(self):
        start, blocks, at = BASE + (self.device << 40), [], BASE + (self.device << 40)
        for address, (size, frames) in sorted(self.live.items()):
            if address > at:
                blocks.append(block(at, address - at, 0, "inactive", []))
            blocks.append(block(address, size, size, "active_allocated", frames))
            at = address + size
        if at < start + self.segment_bytes:
            blocks.append(block(at, start + self.segment_bytes - at, 0, "inactive", []))
        return {
            "device": self.device, "address": start, "total_size": self.segment_bytes, "stream": 0,
            "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False, "blocks": blocks,
        }  # fmt: skip

    def snapshot(self):
        made = {"segments": [self.segment()], "device_traces": [[]] * self.device + [self.entries]}
        made |= {"external_annotations": self.notes}
        return made | ({"workbench": self.ours} if self.ours else {})


def block(address, size, requested, state, frames):
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": frames}


def wander(seed, count=300, **kinds):
    """Return a recording of `count` random allocations and frees, with some older blocks."""
    dice, recording = random.Random(seed), Recording(**kinds)
    sites = [[frame(f"f{i}", line=i + 1), frame("main", "train.py", 9)] for i in range(12)]
    held = [recording.older(dice.randrange(1, 9000)) for _ in range(dice.randrange(6))]
    for _ in range(count):
        if held and dice.random() < 0.48:
            recording.free(held.pop(dice.randrange(len(held))))
        else:
            held.append(recording.alloc(dice.randrange(1, 9000), dice.choice(sites)))
    return recording


@dataclass
class Maker:
    """Functions with which tests build and save snapshots."""

    folder: Path
    frame = staticmethod(frame)
    wander = staticmethod(wander)
    Recording = Recording

    def save(self, snapshot, name="rank0_memory_snapshot.pickle", step="iteration_5"):
        """Write a snapshot as `.pickle` or `.json`, optionally with `.gz`, and return it as a file of a run."""
        path = self.folder / step / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = json.dumps(snapshot).encode() if ".json" in name else pickle.dumps(snapshot, protocol=4)
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return self.artefact(path)

    @staticmethod
    def artefact(path):
        place, is_exit = run.step_of(path)
        return run.Artefact(path, run.Kind.SNAPSHOT, run.rank_of(path), place, is_exit, path.stat().st_size)


@pytest.fixture
def maker(tmp_path):
    return Maker(tmp_path)


@pytest.fixture
def real_snapshots():
    return [Maker.artefact(path) for path in sorted(recorded("memory").iterdir())]


def replayed(snapshot, device):
    """Return (start, peak, peak index, end, active) of a device, computed by a plain loop over its entries."""
    segments = snapshot if isinstance(snapshot, list) else snapshot["segments"]
    traces = [] if isinstance(snapshot, list) else snapshot.get("device_traces", [])
    active = {}
    for segment in (s for s in segments if s["device"] == device):
        at = segment["address"]
        for one in segment["blocks"]:
            if one["state"] != "inactive":
                active[one.get("address", at)] = one["requested_size"]
            at += one["size"]
    trace = traces[device] if device < len(traces) else []
    held, older = {}, 0
    for entry in trace:
        if entry["action"] == "alloc":
            held[entry["addr"]] = entry["size"]
        elif entry["action"] == "free_completed" and held.pop(entry["addr"], None) is None:
            older += entry["size"]
    now = older + sum(size for address, size in active.items() if address not in held)
    start, peak, where = now, now, -1
    for index, entry in enumerate(trace):
        now += {"alloc": entry["size"], "free_completed": -entry["size"]}.get(entry["action"], 0)
        if now > peak:
            peak, where = now, index
    return start, peak, where, now, sum(active.values())


@pytest.fixture
def oracle():
    return replayed
