"""Plant leaks or large steps in snapshots in which no steps are marked, and count how many are found.

    python -m benchmarks.blocks.planted_cases leaks|spikes SNAPSHOT... [--kept-back]

A snapshot of any job gives the operations of a step: the entries between two occurrences of a recurring stack, or else
the whole trace. They are repeated with new addresses as further steps, and with changes, so that the truth is known.

`leaks` leaves out frees. Half of its cases have no leak, but something similar: caches that fill up, queues,
evaluation, state that is created in the first step, weights that are loaded one by one, caches that grow by
replacement.

In some cases of `spikes` one or two of the steps have larger tensors, as with a long sequence; in others a request
fails, in a larger step or in one like the others. Where most of the memory is weights, tensors of twice the size raise
the peak by little: a finding is expected if the simulated device counted at least 10 % more than in all other steps.

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
from typing import Any, NamedTuple, Protocol, TypeVar

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


@dataclass(frozen=True)
class LeakCase:
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
    third = [block for block in job.step[: len(job.step) // 3] if not is_backward(block)]
    addresses = [job.device.alloc(block.size, block.frames) for block in third]
    for address in addresses:
        job.device.free(address)


def is_backward(block: Block) -> bool:
    """Return whether the autograd engine allocated a block."""
    return any("autograd::" in frame["name"] and "ngine" in frame["name"] for frame in block.frames)


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


LEAK_CASES = (
    LeakCase("a block a step", True, keeping(one_block)),
    LeakCase("a block a step, 40 steps", True, keeping(one_block, steps=40)),
    LeakCase("a block a step, beginning lost", True, keeping(one_block, lost=0.4, steps=20)),
    LeakCase("a block a step, batches vary", True, keeping(one_block, steps=24, scale=any_batch)),
    LeakCase("a block a step from the fourth on", True, keeping(from_fourth, steps=14)),
    LeakCase("eight blocks a step", True, keeping(several_blocks)),
    LeakCase("a block every second step", True, keeping(every_second, steps=24)),
    LeakCase("a block a step, evaluation between", True, keeping(one_block, after=evaluation, steps=15)),
    LeakCase("a block a step, checkpoints between", True, keeping(one_block, after=checkpoint, steps=15)),
    LeakCase("nothing kept", False, keeping(nothing)),
    LeakCase("nothing kept, beginning lost", False, keeping(nothing, lost=0.5, steps=20)),
    LeakCase("nothing kept, batches vary", False, keeping(nothing, steps=24, scale=any_batch)),
    LeakCase("a cache that fills", False, keeping(first_four, steps=16)),
    LeakCase("a queue of four", False, keeping(nothing, after=queue, steps=16)),
    LeakCase("a small history by replacement", False, keeping(nothing, after=replaced, steps=16)),
    LeakCase("evaluation between", False, keeping(nothing, after=evaluation, steps=15)),
    LeakCase("checkpoints between", False, keeping(nothing, after=checkpoint, steps=15)),
    LeakCase("only loading", False, loading),
    LeakCase("one step", False, one_step_only),
)


def leaks(options: argparse.Namespace) -> int:
    """Print each wrong answer, and how many leaks were found and how many cases without one raise no alarm."""
    right, total = Counter[bool](), Counter[bool]()
    for case, source, _, report in simulated(options.snapshots, LEAK_CASES, kept_back=options.kept_back):
        titles = [finding.title for finding in report.findings if finding.id == "memory.leak"]
        total[case.leaks] += 1
        right[case.leaks] += bool(titles) == case.leaks
        if bool(titles) != case.leaks:
            print(f"wrong: {case.name} in {source[:40]}: {'; '.join(titles) or 'nothing found'}")
    print(f"leaks found {right[True]} of {total[True]}, no false alarm in {right[False]} of {total[False]}")
    return int(right != total)


Scale = Callable[[Job, int], float]


def larger(factor: float, *steps: int, usual: Scale = lambda _job, _number: 1.0) -> Scale:
    """Return a function that scales the sizes of `steps` by `factor`, and those of other steps as `usual` says."""
    return lambda job, number: factor if number in steps else usual(job, number)


def limited(share: float, at: int) -> Callable[[Job, int], None]:
    """Return a function that, after step `at`, limits the memory to `share` of the highest use so far."""

    def set_limit(job: Job, number: int) -> None:
        if number == at:
            job.device.limit = int(share * max(job.device.peaks))

    return set_limit


def large_evaluation(job: Job, number: int) -> None:
    """After the eighth step, evaluate once with a batch three times as large, without a backward pass."""
    if number == 8:
        forward = job.step[: len(job.step) // 2]
        for address in [job.device.alloc(3 * block.size, block.frames) for block in forward if block.freed is not None]:
            job.device.free(address)


def job(after: Callable[[Job, int], None] = lambda _job, _number: None, lost: float = 0.0, **options: Any):
    """Return a function that builds a job without a leak."""
    return keeping(nothing, lost=lost, after=after, **options)


class SpikeCase(NamedTuple):
    """A job, the finding that is planted in it ("": none), and how its snapshot is built."""

    name: str
    finding: str
    build: Build


SPIKE, OOM_SPIKE = "memory.spike", "memory.oom.spike"
SPIKE_CASES = (
    SpikeCase("twice in the seventh of 12", SPIKE, job(scale=larger(2.0, 7))),
    SpikeCase("1.5 times in the fifth of 12", SPIKE, job(scale=larger(1.5, 5))),
    SpikeCase("twice in the 15th of 20, beginning lost", SPIKE, job(scale=larger(2.0, 15), steps=20, lost=0.4)),
    SpikeCase("twice in the last of 12", SPIKE, job(scale=larger(2.0, 12))),
    SpikeCase("three times in the ninth, batches vary", SPIKE, job(scale=larger(3.0, 9, usual=any_batch), steps=24)),
    SpikeCase("twice in two of 16", SPIKE, job(scale=larger(2.0, 6, 11), steps=16)),
    SpikeCase("a large evaluation", SPIKE, job(large_evaluation)),
    SpikeCase("four times in the third of 40", SPIKE, job(scale=larger(4.0, 3), steps=40)),
    SpikeCase("out of memory in a step four times as large", OOM_SPIKE, job(limited(1.3, 9), scale=larger(4.0, 10))),
    SpikeCase("out of memory in a larger step, beginning lost", OOM_SPIKE,
         job(limited(1.4, 19), scale=larger(6.0, 20), steps=20, lost=0.4)),
    SpikeCase("out of memory in a step like the others", "", job(limited(0.97, 9))),
    SpikeCase("out of memory, batches vary", "", job(limited(0.95, 19), scale=any_batch, steps=40)),
    SpikeCase("equal steps", "", job()),
    SpikeCase("equal steps, beginning lost", "", job(steps=20, lost=0.5)),
    SpikeCase("batches vary", "", job(scale=any_batch, steps=24)),
    SpikeCase("a queue of four", "", job(queue, steps=16)),
    SpikeCase("evaluation between", "", job(evaluation, steps=15)),
    SpikeCase("a leak", "", keeping(one_block, steps=20)),
    SpikeCase("1.1 times in the seventh", "", job(scale=larger(1.1, 7))),
    SpikeCase("only loading", "", loading),
)  # fmt: skip


def expected(case: SpikeCase, device: Pretended) -> set[str]:
    """Return the ids of the findings on larger steps that a case must have, by what its device counted."""
    if device.entries[-1]["action"] == "oom":
        return {case.finding} if case.finding else set()
    peaks = sorted(device.peaks)
    few = range(1, len(peaks) // 4 + 1)
    return {SPIKE} if any(peaks[-count] >= 1.1 * peaks[-count - 1] for count in few) else set()


def spikes(options: argparse.Namespace) -> int:
    """Print each wrong answer, and how many are right of the cases with a larger step and of those without."""
    right, total = Counter[str](), Counter[str]()
    for case, source, device, report in simulated(options.snapshots, SPIKE_CASES, kept_back=options.kept_back):
        found = {finding.id: finding.title for finding in report.findings if finding.id in (SPIKE, OOM_SPIKE)}
        is_right = set(found) == expected(case, device)
        total[case.finding] += 1
        right[case.finding] += is_right
        if not is_right:
            print(f"wrong: {case.name} in {source[:40]}: {'; '.join(found.values()) or 'nothing found'}")
    for planted in (SPIKE, OOM_SPIKE, ""):
        print(f"{planted or 'nothing planted'}: {right[planted]} of {total[planted]} right")
    return int(right != total)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("planted", choices=("leaks", "spikes"))
    parser.add_argument("snapshots", nargs="+", type=Path)
    parser.add_argument("--kept-back", action="store_true", help="run only the third that no rule was tuned on")
    options = parser.parse_args()
    return (leaks if options.planted == "leaks" else spikes)(options)


if __name__ == "__main__":
    sys.exit(main())
