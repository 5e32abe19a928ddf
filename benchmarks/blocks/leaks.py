"""Add leaks to snapshots in which no steps are marked, and count how many are found.

    python -m benchmarks.blocks.leaks SNAPSHOT... [--kept-back]

A snapshot of any job gives the operations of a step: the entries between two occurrences of a recurring stack, or else
the whole trace. They are repeated with new addresses as further steps; then frees are left out to make a leak. Half of
the cases have no leak, but something similar: caches that fill up, queues, evaluation, state that is created in the
first step, weights that are loaded one by one, caches that grow by replacement.

A third of the cases, selected by a hash of the name, is kept back: it runs only with `--kept-back`.
"""

import argparse
import gzip
import hashlib
import pickle
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analyzers.memory import analyze
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


@dataclass
class Pretended:
    """A simulated device whose allocator never reuses an address, and the trace that it records."""

    entries: list[Entry] = field(default_factory=list)
    live: dict[int, tuple[int, Frames]] = field(default_factory=dict)
    top: int = BASE
    clock: int = 1_700_000_000_000_000

    def alloc(self, size: int, frames: Frames) -> int:
        address, self.top = self.top, self.top + -(-size // 512) * 512
        self.live[address] = (size, frames)
        self.write("alloc", address, size, frames)
        return address

    def free(self, address: int) -> None:
        size, _ = self.live.pop(address)
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
    """A training loop that repeats the operations of a recorded step."""

    step: list[Block]
    dice: random.Random
    device: Pretended = field(default_factory=Pretended)
    steps: int = 12
    keep: Callable[["Job", int], set[int]] = lambda _job, _number: set()
    after: Callable[["Job", int], None] = lambda _job, _number: None
    varies: bool = False
    state: dict[str, Any] = field(default_factory=dict)

    def run(self) -> Pretended:
        for size in self.weights():
            self.device.alloc(size, [])
        for number in range(1, self.steps + 1):
            self.one_step(number)
            self.after(self, number)
        return self.device

    def weights(self) -> list[int]:
        return [block.size for block in self.step if block.freed is None][:200] or [1 << 20] * 8

    def one_step(self, number: int) -> None:
        """Allocate and free as in the recorded step; blocks that the step did not free are allocated in the first
        step only.
        """
        factor = self.dice.choice((1.0, 1.0, 0.75, 0.5)) if self.varies else 1.0
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


Build = Callable[[list[Block], random.Random], tuple[Pretended, int]]
"""A function (operations of a step, random generator) that simulates a job with them.

It returns the simulated device, and how many of the oldest trace entries are lost.
"""


@dataclass(frozen=True)
class Case:
    """A job, and whether it leaks."""

    name: str
    leaks: bool
    build: Build


def keeping(choose: Callable[[Job, int], set[int]], lost: float = 0.0, **options: Any) -> Build:
    """Return a function that builds a job which does not free the blocks that `choose` returns.

    `lost` is the fraction of trace entries to drop.
    """

    def build(step: list[Block], dice: random.Random) -> tuple[Pretended, int]:
        job = Job(step, dice, keep=choose, **options)
        device = job.run()
        return device, int(lost * len(device.entries))

    return build


def one_block(job: Job, _number: int) -> set[int]:
    """Leak a single tensor in each step."""
    return {job.state.setdefault("position", job.dice.choice(job.sizeable()))}


def several_blocks(job: Job, _number: int) -> set[int]:
    """Leak several tensors in each step, like a list of outputs that keeps their autograd graph."""
    return job.state.setdefault("positions", set(job.dice.sample(job.sizeable(), min(8, len(job.sizeable())))))


def from_fourth(job: Job, number: int) -> set[int]:
    """Leak a tensor in each step from the fourth on."""
    return one_block(job, number) if number >= 4 else set()


def every_second(job: Job, number: int) -> set[int]:
    """Leak a tensor in every second step, like a job that logs in every second step."""
    return one_block(job, number) if number % 2 == 0 else set()


def first_four(job: Job, number: int) -> set[int]:
    """Keep tensors of the first four steps only, like a cache that fills up."""
    return several_blocks(job, number) if number <= 4 else set()


def nothing(_job: Job, _number: int) -> set[int]:
    """Keep nothing: each step frees what it allocates."""
    return set()


def queue(job: Job, _number: int) -> None:
    """Keep the last four outputs, like a queue."""
    size = max(block.size for block in job.step) // 8 + 1
    held = job.state.setdefault("queue", [])
    held.append(job.device.alloc(size, [SITE]))
    if len(held) > 4:
        job.device.free(held.pop(0))


def replaced(job: Job, number: int) -> None:
    """Grow a history by concatenation: each step allocates a longer one and frees the old one. It grows slowly."""
    held = job.state.setdefault("history", [])
    held.append(job.device.alloc(256 * number, [SITE]))
    if len(held) > 1:
        job.device.free(held.pop(0))


def evaluation(job: Job, number: int) -> None:
    """After every third step, run the first third of a step without a backward pass."""
    if number % 3:
        return
    addresses = [job.device.alloc(block.size, block.frames) for block in job.step[: len(job.step) // 3]]
    for address in addresses:
        job.device.free(address)


def checkpoint(job: Job, number: int) -> None:
    """In every fifth step, copy the weights and free the copies."""
    if number % 5 == 0:
        for address in [job.device.alloc(size, [SITE]) for size in job.weights()]:
            job.device.free(address)


def loading(_step: list[Block], _dice: random.Random) -> tuple[Pretended, int]:
    """Only load a model: read, convert and keep each layer."""
    device = Pretended()
    read = [{"name": "load_weights", "filename": "/home/me/model.py", "line": 31}]
    convert = [{"name": "to", "filename": "/home/me/model.py", "line": 32}]
    for _ in range(24):
        for size in (4 << 20, 16 << 20, 16 << 20):
            temporary = device.alloc(2 * size, read)
            device.alloc(size, convert)
            device.free(temporary)
    return device, 0


def one_step_only(step: list[Block], dice: random.Random) -> tuple[Pretended, int]:
    """Run a single step, without a loop."""
    return Job(step, dice, steps=1).run(), 0


CASES = (
    Case("a block a step", True, keeping(one_block)),
    Case("a block a step, 40 steps", True, keeping(one_block, steps=40)),
    Case("a block a step, beginning lost", True, keeping(one_block, lost=0.4, steps=20)),
    Case("a block a step, batches vary", True, keeping(one_block, steps=24, varies=True)),
    Case("a block a step from the fourth on", True, keeping(from_fourth, steps=14)),
    Case("eight blocks a step", True, keeping(several_blocks)),
    Case("a block every second step", True, keeping(every_second, steps=24)),
    Case("a block a step, evaluation between", True, keeping(one_block, after=evaluation, steps=15)),
    Case("a block a step, checkpoints between", True, keeping(one_block, after=checkpoint, steps=15)),
    Case("nothing kept", False, keeping(nothing)),
    Case("nothing kept, beginning lost", False, keeping(nothing, lost=0.5, steps=20)),
    Case("nothing kept, batches vary", False, keeping(nothing, steps=24, varies=True)),
    Case("a cache that fills", False, keeping(first_four, steps=16)),
    Case("a queue of four", False, keeping(nothing, after=queue, steps=16)),
    Case("a small history by replacement", False, keeping(nothing, after=replaced, steps=16)),
    Case("evaluation between", False, keeping(nothing, after=evaluation, steps=15)),
    Case("checkpoints between", False, keeping(nothing, after=checkpoint, steps=15)),
    Case("only loading", False, loading),
    Case("one step", False, one_step_only),
)


def is_kept_back(name: str) -> bool:
    """Return whether a case belongs to the third that no rule was tuned on."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 3 == 0


def answers(case: Case, step: list[Block], seed: str, folder: Path) -> tuple[bool, str]:
    """Return whether the report on a case is right, and what it says."""
    device, lost = case.build(step, random.Random(seed))
    path = folder / "rank0_memory_snapshot.pickle"
    path.write_bytes(pickle.dumps(device.snapshot(lost), protocol=4))
    report = analyze([Artefact(path, Kind.SNAPSHOT, 0, None, False, path.stat().st_size)])
    titles = [finding.title for finding in report.findings if finding.id == "memory.leak"]
    return bool(titles) == case.leaks, "; ".join(titles)


def run(paths: Sequence[Path], *, kept_back: bool) -> Iterator[tuple[Case, str, bool, str]]:
    """Yield (case, source snapshot, whether the report is right, what it says)."""
    for path in paths:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rb") as file:
            content = pickle.load(file)  # the user names these files
        step = step_operations(max(content["device_traces"], key=len))
        for case in CASES:
            name = f"{path.name} {case.name}"
            if is_kept_back(name) == kept_back:
                with tempfile.TemporaryDirectory() as folder:
                    yield case, path.name, *answers(case, step, name, Path(folder))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snapshots", nargs="+", type=Path)
    parser.add_argument("--kept-back", action="store_true", help="run only the third that no rule was tuned on")
    options = parser.parse_args()
    right: Counter[bool] = Counter()
    total: Counter[bool] = Counter()
    for case, source, is_right, said in run(options.snapshots, kept_back=options.kept_back):
        total[case.leaks] += 1
        right[case.leaks] += is_right
        if not is_right:
            print(f"wrong: {case.name} in {source[:40]}: {said or 'nothing found'}")
    print(f"leaks found {right[True]} of {total[True]}, no false alarm in {right[False]} of {total[False]}")
    return int(right != total)


if __name__ == "__main__":
    sys.exit(main())
