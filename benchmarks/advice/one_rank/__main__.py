"""Check what the advice on a failed request begins with where one rank of several ran out of memory.

`python -m benchmarks.advice.one_rank [--kept-aside] [--only JOB]`: each job trains its ranks on the CPU, one after the
other, under the memory recorder. The recording of one rank is cut at the first request that exceeds a limit between
its own peak and that of its earlier steps, or that of the other ranks. Then the run is analyzed as any other.
"""

import argparse
import os
import pickle
import re
import tempfile
from pathlib import Path

import torch

from analyzers import memory, unpickle
from analyzers.report import Finding
from benchmarks.advice.one_rank import jobs, schedules
from benchmarks.advice.one_rank.cases import Case, Peers, Recorded, cases
from benchmarks.advice.one_rank.snapshots import Raw, as_on_device, cut, entry_of_step, fail, live_series
from benchmarks.blocks.categories import with_python_stacks
from workbench.recorders.memory.recorder import MemoryRecorder

SPIKE, NEARLY = 1.15, 0.98
CONTEXT = 8 << 20


def train_rank(job: str, rank: int, folder: Path) -> None:
    """Train one rank of a job under the recorder, and write its snapshot after the last step."""
    os.environ["RANK"] = str(rank)
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    recorders: list[MemoryRecorder] = []

    def hand(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        recorders.append(MemoryRecorder(folder, model, optimizer, freq=100, window=100))
        # As on a device, the first step has Python frames, too.
        recorders[0]._history._first = False  # noqa: SLF001

    # The recorder exists once the job has handed over its model.
    getattr(jobs if hasattr(jobs, job) else schedules, job)(
        rank,
        lambda number: recorders[0].step(int(number)),
        lambda name: recorders[0].phase(name),  # noqa: PLW0108
        hand,
    )
    recorders[0].write()


def recordings(job: str, folder: Path) -> list[Path]:
    """Return the snapshot of each rank of a job; they are recorded unless they are in `folder` already."""
    for rank in range(jobs.WORLD):
        if not list(folder.glob(f"*/rank{rank}_*")):
            child = os.fork()
            if not child:
                status = 1
                try:
                    train_rank(job, rank, folder)
                    status = 0
                finally:
                    os._exit(status)
            assert not os.waitpid(child, 0)[1], (job, rank)
    return [next(iter(folder.glob(f"*/rank{rank}_*"))) for rank in range(jobs.WORLD)]


def loaded(path: Path) -> Raw:
    with path.open("rb") as stream:
        raw: Raw = unpickle.load(stream)
    return raw


def write_run(case: Case, source: list[Path], folder: Path) -> None:
    """Write the snapshots of all ranks, those of the peers before that of the failed one."""
    expected, raws = case.expected, [loaded(path) for path in source]
    last = max(int(n["name"][5:]) for n in raws[0]["external_annotations"] if n["name"].startswith("step#"))
    others = max(max(live_series(raw)) for rank, raw in enumerate(raws) if rank != expected.rank)
    failing = 1 if expected.outside else last
    limit = limit_of(raws[expected.rank], failing, others, expected.outside)
    total = max(others, limit) + CONTEXT
    for rank, raw in enumerate(raws):
        if rank == expected.rank:
            fail(raw, limit, entry_of_step(raw, failing, "START"))
            write(
                raw,
                case,
                rank,
                failing - 1,
                total,
                total if expected.outside else 0,
                folder / f"iteration_{failing - 1}_exit",
            )
        else:
            step = last - 1 if case.peers is Peers.STEP_BEFORE else last
            end = entry_of_step(raw, step, "END")
            peak = max(live_series(raw)[:end])
            cut(raw, end, peak)
            write(raw, case, rank, step, total, peak + CONTEXT, folder / f"iteration_{step}")


def limit_of(raw: Raw, step: int, others: int, outside: float) -> int:
    """Return the bytes at which a step fails: between its peak and what went well, in earlier steps or other ranks.

    If another process has a share of the device (`outside`), it is what the other ranks need, less that share.
    """
    series, start = live_series(raw), entry_of_step(raw, step, "START")
    peak, before = max(series[start:]), max(series[:start], default=0)
    if outside:
        return int((1 - outside) * others)
    # The devices are equal, so what other ranks needed fits.
    well = max(before, others) if peak > SPIKE * before else others
    return (well + peak) // 2 if well < NEARLY * peak else int(NEARLY * peak)


def write(raw: Raw, case: Case, rank: int, step: int, total: int, used: int, folder: Path) -> None:
    """Write the snapshot of a rank whose device has `total` bytes, of which at least `used` are in use."""
    if case.recorded is Recorded.OURS:
        process = sum(segment["total_size"] for segment in raw["segments"]) + CONTEXT
        as_on_device(raw, total, max(used, process), process)
        raw["workbench"]["step"] = step
    else:
        with_python_stacks(raw)
    path = folder / f"rank{rank}_memory_snapshot.pickle"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(raw, protocol=4))


def advice_on(case: Case, source: list[Path]) -> Finding:
    with tempfile.TemporaryDirectory() as folder:
        write_run(case, source, Path(folder, "memory_snapshot"))
        findings = memory.analyze(folder).findings
        return next(finding for finding in findings if finding.id == "memory.oom")


def is_right(case: Case, finding: Finding) -> bool:
    """Return whether the first two sentences have what an expert would say, and no sentence has what is wrong."""
    beginning = " ".join(re.split(r"(?<=[.]) ", finding.next)[:2])
    wrong = case.expected.never and re.search(case.expected.never, finding.next)
    return bool(re.search(case.expected.words, beginning)) and not wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept-aside", action="store_true", help="run only the third that no rule was tuned on")
    parser.add_argument("--only", default="", help="run only this job")
    parser.add_argument("--recordings", type=Path, default=Path(tempfile.gettempdir()) / "one_rank")
    parser.add_argument("--quiet", action="store_true", help="print the score alone")
    options = parser.parse_args()
    asked = [c for c in cases() if c.is_kept_aside == options.kept_aside and options.only in c.name]
    right = 0
    for case in asked:
        finding = advice_on(case, recordings(case.expected.job, options.recordings / case.expected.job))
        good = is_right(case, finding)
        right += good
        if not options.quiet:
            print(f"{'right' if good else 'WRONG'}  {case.name}\n    {finding.title}\n    {finding.next}", flush=True)
    print(f"{right} of {len(asked)} right")


if __name__ == "__main__":
    main()
