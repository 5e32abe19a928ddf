"""Simulate cases on the operations of real snapshots, and analyze the snapshots that the simulated devices write.

The operations of a recorded training step are repeated, with changes, so that the truth is known.
"""

import argparse
import gzip
import hashlib
import pickle
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from analyzers.memory import MemoryData, analyze
from analyzers.report import Report
from analyzers.run import Artefact, Kind

Entry = dict[str, Any]
Frames = list[dict[str, Any]]
BASE = 0x7F00_0000_0000
SIZEABLE = 0.002
"""A block may leak if it has at least this share of the bytes of the twenty largest blocks of a step."""
SITE = {"name": "log_metrics", "filename": "/home/me/train.py", "line": 77}


@dataclass
class Block:
    """An allocation of a step; `born` and `freed` are positions in the step's operations (`freed` None: it is not
    freed).
    """

    size: int
    frames: Frames
    freed: int | None


class OutOfMemoryError(Exception):
    """The simulated device cannot serve a request."""


@dataclass
class Pretended:
    """A simulated device whose allocator never reuses an address, and the trace that it records.

    `limit` is the number of bytes that may be allocated at once; None: as many as are asked for. `peaks` has the
    highest number of allocated bytes in each step so far.
    """

    entries: list[Entry] = field(default_factory=list)
    live: dict[int, tuple[int, Frames]] = field(default_factory=dict)
    top: int = BASE
    clock: int = 1_700_000_000_000_000
    limit: int | None = None
    allocated: int = 0
    peaks: list[int] = field(default_factory=list)

    def alloc(self, size: int, frames: Frames) -> int:
        if self.limit is not None and self.allocated + size > self.limit:
            self.write("oom", max(0, self.limit - self.allocated), size, frames)
            raise OutOfMemoryError
        self.allocated += size
        if self.peaks:
            self.peaks[-1] = max(self.peaks[-1], self.allocated)
        address, self.top = self.top, self.top + -(-size // 512) * 512
        self.live[address] = (size, frames)
        self.write("alloc", address, size, frames)
        return address

    def free(self, address: int) -> None:
        size, _ = self.live.pop(address)
        self.allocated -= size
        self.write("free_requested", address, size, [])
        self.write("free_completed", address, size, [])

    def write(self, action: str, address: int, size: int, frames: Frames) -> None:
        self.clock += 5
        entry = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": self.clock, "frames": frames}
        self.entries.append(entry)

    def snapshot(self, lost: int = 0) -> dict[str, Any]:
        """Return the snapshot that PyTorch would write, without the first `lost` trace entries."""
        segments = [
            {
                "device": 0, "address": address, "total_size": -(-size // 512) * 512, "stream": 0,
                "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False,
                "blocks": [{"address": address, "size": -(-size // 512) * 512, "requested_size": size,
                            "state": "active_allocated", "frames": frames}],
            }
            for address, (size, frames) in sorted(self.live.items())
        ]  # fmt: skip
        return {"segments": segments, "device_traces": [self.entries[lost:]], "external_annotations": []}


def step_operations(trace: Sequence[Entry]) -> list[Block]:
    """Return the allocations of a step of a trace, in order; `freed` is counted in allocations of the step."""
    first, last = step_bounds(trace)
    blocks: list[Block] = []
    open_blocks: dict[int, Block] = {}
    for entry in trace[first:last]:
        if entry["action"] == "alloc":
            open_blocks[entry["addr"]] = block = Block(entry["size"], entry.get("frames", []), None)
            blocks.append(block)
        elif entry["action"] == "free_completed" and (closed := open_blocks.pop(entry["addr"], None)):
            closed.freed = len(blocks)
    return blocks


def step_bounds(trace: Sequence[Entry]) -> tuple[int, int]:
    """Return the first and last entry of the last step.

    The step starts and ends at a stack that occurs twice, with the most entries between its two occurrences.
    """
    places: dict[str, list[int]] = {}
    for index, entry in enumerate(trace):
        if entry["action"] == "alloc":
            places.setdefault(repr(entry.get("frames", [])), []).append(index)
    recurring = [(at[-1] - at[-2], at[-2], at[-1]) for at in places.values() if 2 <= len(at) <= 4]
    longest, first, last = max(recurring, default=(0, 0, len(trace)))
    return (first, last) if longest * 5 > len(trace) else (0, len(trace))


@dataclass
class Job:
    """A training loop that repeats the operations of a recorded step.

    `keep` returns the positions of the blocks that a step does not free, `scale` the factor of all sizes in a step;
    `after` is called after each step.
    """

    step: list[Block]
    dice: random.Random
    device: Pretended = field(default_factory=Pretended)
    steps: int = 12
    keep: Callable[["Job", int], set[int]] = lambda _job, _number: set()
    after: Callable[["Job", int], None] = lambda _job, _number: None
    scale: Callable[["Job", int], float] = lambda _job, _number: 1.0
    state: dict[str, Any] = field(default_factory=dict)

    def run(self) -> Pretended:
        for size in self.weights():
            self.device.alloc(size, [])
        try:
            for number in range(1, self.steps + 1):
                self.device.peaks.append(self.device.allocated)
                self.one_step(number)
                self.after(self, number)
        except OutOfMemoryError:
            pass  # as in a real job, the trace ends here
        return self.device

    def weights(self) -> list[int]:
        return [block.size for block in self.step if block.freed is None][:200] or [1 << 20] * 8

    def one_step(self, number: int) -> None:
        """Allocate and free as in the recorded step; blocks that the step did not free are allocated in the first
        step only.
        """
        factor = self.scale(self, number)
        kept, due = self.keep(self, number), dict[int, list[int]]()
        for position, block in enumerate(self.step):
            for address in due.pop(position, []):
                self.device.free(address)
            if block.freed is None and number > 1 and position not in kept:
                continue
            address = self.device.alloc(max(1, int(block.size * factor)), block.frames)
            if block.freed is not None and position not in kept:
                due.setdefault(max(block.freed, position + 1), []).append(address)
        for addresses in due.values():
            for address in addresses:
                self.device.free(address)

    def sizeable(self) -> list[int]:
        """Return the positions of freed blocks that have a known stack and are large enough for a leak to matter."""
        total = sum(sorted((block.size for block in self.step), reverse=True)[:20])
        wanted = SIZEABLE * total
        return [p for p, b in enumerate(self.step) if b.freed is not None and b.frames and b.size >= wanted]


def any_batch(job: Job, _number: int) -> float:
    """Return the factor of the sizes in a step whose batch varies."""
    return job.dice.choice((1.0, 1.0, 0.75, 0.5))


Build = Callable[[list[Block], random.Random], tuple[Pretended, int]]
"""A function (operations of a step, random generator) that simulates a job with them.

It returns the simulated device, and how many of the oldest trace entries are lost.
"""


class Planted(Protocol):
    """A case to simulate: its name, and the function that simulates it."""

    @property
    def name(self) -> str: ...
    @property
    def build(self) -> Build: ...


PlantedT = TypeVar("PlantedT", bound=Planted)


def is_kept_back(name: str) -> bool:
    """Return whether a case belongs to the third that no rule was tuned on."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 3 == 0


def simulated(
    paths: Sequence[Path], cases: Sequence[PlantedT], *, kept_back: bool
) -> Iterator[tuple[PlantedT, str, Pretended, Report[MemoryData]]]:
    """Yield (case, name of the source snapshot, simulated device, report on the snapshot that the device writes).

    Each case is simulated with the operations of a step in each snapshot of `paths`.
    """
    for path in paths:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rb") as file:
            content = pickle.load(file)  # the user names these files
        step = step_operations(max(content["device_traces"], key=len))
        for case in cases:
            name = f"{path.name} {case.name}"
            if is_kept_back(name) == kept_back:
                device, lost = case.build(step, random.Random(name))
                yield case, path.name, device, report_on(device, lost)


def report_on(device: Pretended, lost: int) -> Report[MemoryData]:
    """Return the report on the snapshot of a simulated device whose `lost` oldest trace entries are missing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0_memory_snapshot.pickle"
        path.write_bytes(pickle.dumps(device.snapshot(lost), protocol=4))
        return analyze([Artefact(path, Kind.SNAPSHOT, 0, None, False, path.stat().st_size)])


def options_of(description: str | None) -> argparse.Namespace:
    """Return the options of the command line: `snapshots`, a list of paths, and `kept_back`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snapshots", nargs="+", type=Path)
    parser.add_argument("--kept-back", action="store_true", help="run only the third that no rule was tuned on")
    return parser.parse_args()
