"""Let single steps of anybody's job need more memory than the others, and count how many are found without marks.

    python -m benchmarks.blocks.spikes SNAPSHOT... [--kept-back]

The operations of a step are taken from each snapshot and repeated, as in `benchmarks.blocks.leaks`. In some cases one
or two of the steps have larger tensors, as with a long sequence; in others a request fails, in a larger step or in one
like the others. No case marks its steps. Where most of the memory is weights, tensors of twice the size raise the peak
by little: a finding is expected if the simulated device counted at least 10 % more than in all other steps. A third of
the cases, selected by a hash of the name, is kept back.
"""

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.blocks.leaks import evaluation, keeping, loading, nothing, one_block, queue
from benchmarks.blocks.planted_cases import Build, Job, Pretended, any_batch, options_of, simulated

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


class Case(NamedTuple):
    """A job, the finding that is planted in it ("": none), and how its snapshot is built."""

    name: str
    finding: str
    build: Build


SPIKE, OOM_SPIKE = "memory.spike", "memory.oom.spike"
CASES = (
    Case("twice in the seventh of 12", SPIKE, job(scale=larger(2.0, 7))),
    Case("1.5 times in the fifth of 12", SPIKE, job(scale=larger(1.5, 5))),
    Case("twice in the 15th of 20, beginning lost", SPIKE, job(scale=larger(2.0, 15), steps=20, lost=0.4)),
    Case("twice in the last of 12", SPIKE, job(scale=larger(2.0, 12))),
    Case("three times in the ninth, batches vary", SPIKE, job(scale=larger(3.0, 9, usual=any_batch), steps=24)),
    Case("twice in two of 16", SPIKE, job(scale=larger(2.0, 6, 11), steps=16)),
    Case("a large evaluation", SPIKE, job(large_evaluation)),
    Case("four times in the third of 40", SPIKE, job(scale=larger(4.0, 3), steps=40)),
    Case("out of memory in a step four times as large", OOM_SPIKE, job(limited(1.3, 9), scale=larger(4.0, 10))),
    Case("out of memory in a larger step, beginning lost", OOM_SPIKE,
         job(limited(1.4, 19), scale=larger(6.0, 20), steps=20, lost=0.4)),
    Case("out of memory in a step like the others", "", job(limited(0.97, 9))),
    Case("out of memory, batches vary", "", job(limited(0.95, 19), scale=any_batch, steps=40)),
    Case("equal steps", "", job()),
    Case("equal steps, beginning lost", "", job(steps=20, lost=0.5)),
    Case("batches vary", "", job(scale=any_batch, steps=24)),
    Case("a queue of four", "", job(queue, steps=16)),
    Case("evaluation between", "", job(evaluation, steps=15)),
    Case("a leak", "", keeping(one_block, steps=20)),
    Case("1.1 times in the seventh", "", job(scale=larger(1.1, 7))),
    Case("only loading", "", loading),
)  # fmt: skip


def expected(case: Case, device: Pretended) -> set[str]:
    """Return the ids of the findings on larger steps that a case must have, by what its device counted."""
    if device.entries[-1]["action"] == "oom":
        return {case.finding} if case.finding else set()
    peaks = sorted(device.peaks)
    few = range(1, len(peaks) // 4 + 1)
    return {SPIKE} if any(peaks[-count] >= 1.1 * peaks[-count - 1] for count in few) else set()


def main() -> int:
    """Print each wrong answer, and how many are right of the cases with a larger step and of those without."""
    options = options_of(__doc__)
    right, total = Counter[str](), Counter[str]()
    for case, source, device, report in simulated(options.snapshots, CASES, kept_back=options.kept_back):
        found = {finding.id: finding.title for finding in report.findings if finding.id in (SPIKE, OOM_SPIKE)}
        is_right = set(found) == expected(case, device)
        total[case.finding] += 1
        right[case.finding] += is_right
        if not is_right:
            print(f"wrong: {case.name} in {source[:40]}: {'; '.join(found.values()) or 'nothing found'}")
    for planted in (SPIKE, OOM_SPIKE, ""):
        print(f"{planted or 'nothing planted'}: {right[planted]} of {total[planted]} right")
    return int(right != total)


if __name__ == "__main__":
    sys.exit(main())
