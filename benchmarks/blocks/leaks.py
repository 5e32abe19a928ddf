"""Add leaks to snapshots in which no steps are marked, and count how many are found.

    python -m benchmarks.blocks.leaks SNAPSHOT... [--kept-back]

A snapshot of any job gives the operations of a step: the entries between two occurrences of a recurring stack, or else
the whole trace. They are repeated with new addresses as further steps; then frees are left out to make a leak. Half of
the cases have no leak, but something similar: caches that fill up, queues, evaluation, state that is created in the
first step, weights that are loaded one by one, caches that grow by replacement.

A third of the cases, selected by a hash of the name, is kept back: it runs only with `--kept-back`.
"""

import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.blocks.planted_cases import SITE, Block, Build, Job, Pretended, any_batch, options_of, simulated


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


CASES = (
    Case("a block a step", True, keeping(one_block)),
    Case("a block a step, 40 steps", True, keeping(one_block, steps=40)),
    Case("a block a step, beginning lost", True, keeping(one_block, lost=0.4, steps=20)),
    Case("a block a step, batches vary", True, keeping(one_block, steps=24, scale=any_batch)),
    Case("a block a step from the fourth on", True, keeping(from_fourth, steps=14)),
    Case("eight blocks a step", True, keeping(several_blocks)),
    Case("a block every second step", True, keeping(every_second, steps=24)),
    Case("a block a step, evaluation between", True, keeping(one_block, after=evaluation, steps=15)),
    Case("a block a step, checkpoints between", True, keeping(one_block, after=checkpoint, steps=15)),
    Case("nothing kept", False, keeping(nothing)),
    Case("nothing kept, beginning lost", False, keeping(nothing, lost=0.5, steps=20)),
    Case("nothing kept, batches vary", False, keeping(nothing, steps=24, scale=any_batch)),
    Case("a cache that fills", False, keeping(first_four, steps=16)),
    Case("a queue of four", False, keeping(nothing, after=queue, steps=16)),
    Case("a small history by replacement", False, keeping(nothing, after=replaced, steps=16)),
    Case("evaluation between", False, keeping(nothing, after=evaluation, steps=15)),
    Case("checkpoints between", False, keeping(nothing, after=checkpoint, steps=15)),
    Case("only loading", False, loading),
    Case("one step", False, one_step_only),
)


def main() -> int:
    """Print each wrong answer, and how many leaks were found and how many cases without one raise no alarm."""
    options = options_of(__doc__)
    right, total = Counter[bool](), Counter[bool]()
    for case, source, _, report in simulated(options.snapshots, CASES, kept_back=options.kept_back):
        titles = [finding.title for finding in report.findings if finding.id == "memory.leak"]
        total[case.leaks] += 1
        right[case.leaks] += bool(titles) == case.leaks
        if bool(titles) != case.leaks:
            print(f"wrong: {case.name} in {source[:40]}: {'; '.join(titles) or 'nothing found'}")
    print(f"leaks found {right[True]} of {total[True]}, no false alarm in {right[False]} of {total[False]}")
    return int(right != total)


if __name__ == "__main__":
    sys.exit(main())
