"""Check what the advice on a failed request begins with where one rank of several ran out of memory.

`python -m benchmarks.advice.one_rank [--kept-aside] [--only JOB]`: each job trains its ranks on the CPU, one after the
other, under the memory recorder. The recording of one rank is cut at the first request that exceeds a limit between
its own peak and that of its earlier steps, or that of the other ranks. Then the run is analyzed as any other.
"""

import argparse
import hashlib
import os
import pickle
import re
import tempfile
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import torch

from analyzers import memory, unpickle
from analyzers.report import Finding
from benchmarks.advice.one_rank import jobs
from benchmarks.advice.one_rank.snapshots import Raw, as_on_device, cut, entry_of_step, fail, live_series
from benchmarks.blocks.categories import with_python_stacks
from workbench.recorders.memory.recorder import MemoryRecorder

KEPT_ASIDE = 3
"""One of so many cases is kept aside: no rule was tuned on it."""


class Peers(StrEnum):
    """The snapshots of the other ranks: after the last step, or after the step before."""

    AT_END = "at_end"
    STEP_BEFORE = "step_before"


class Recorded(StrEnum):
    """How the snapshots were recorded: by our recorder, or by PyTorch alone with Python stacks."""

    OURS = "ours"
    STOCK = "stock"


class Expected(NamedTuple):
    """A job, the rank that fails in it, and the pattern that the beginning of the advice must match.

    `never` must match nowhere in the advice. `outside` is the share of the device that another process has.
    """

    job: str
    rank: int
    words: str
    never: str = ""
    outside: float = 0.0


BATCH = r"First check (the|why the failing step's) batch"
RANKS = r"(?i)(other|all|each|every) ranks?"
EXPECTED = (
    Expected("uneven_batch", 2, r"(?is)(?=.*rank 2).*(batch|samples|inputs)"),
    Expected("long_sample", 1, r"(?i)(batch|sample|sequence).*(long|large)"),
    Expected("long_sample_first_step", 3, r"(?is)(?=.*rank 3).*(batch|samples|inputs|sequence)"),
    Expected("large_image", 3, r"(?i)(batch|sample|input|image).*large"),
    Expected("last_stage_with_head", 3, r"(?is)(?=.*rank 3).*(stage|head|logits|loss)"),
    Expected("first_stage_in_flight", 0, r"(?is)(?=.*rank 0).*microbatch"),
    Expected("uneven_stages", 1, r"(?is)(?=.*rank 1).*(parameters|layers)"),
    Expected("moving_average", 0, r"(?is)(?=.*rank 0).*(update_ema|moving average)"),
    Expected("full_checkpoint", 0, r"(?is)(?=.*rank 0).*(gather_full_state_dict|checkpoint)"),
    Expected("uneven_experts", 3, r"(?is)(?=.*rank 3).*(expert|dispatch|router|MoE)", never=BATCH),
    Expected("evaluation_on_rank_0", 0, r"(?is)(?=.*rank 0).*evaluat"),
    Expected("evaluation_everywhere", 1, r".", never=RANKS),
    Expected("alike", 2, r".", never=RANKS),
    Expected("alike_varied", 2, r".", never=RANKS),
    Expected("without_recomputation", 2, r"(?is)(?=.*rank 2).*(keep|recomput|checkpointing)", never=BATCH),
    Expected("longer_from_now", 1, r"(?i)batch|sequence", never=r"Give all ranks|no other rank|in every step"),
    Expected("small_logging", 0, r".", never=RANKS),
    Expected("recorded_activations", 0, r"(?is)(?=.*rank 0).*remember_output"),
    Expected("logged_losses", 0, r"(?i)log_metrics|keeps"),
    Expected("teacher_on_rank_0", 0, r"(?is)(?=.*rank 0).*build_teacher"),
    Expected("alike", 1, r"(?i)(process|outside|nvidia-smi|other than)", outside=0.4),
    Expected("other_loop", 1, r".", never=RANKS),
    Expected("other_loop_and_batch", 2, r"(?is)(?=.*rank 2).*(batch|samples|inputs)", never=r"no other rank ran"),
    Expected("wrapped_model", 3, r".", never=RANKS),
    Expected("warm_up_stage", 0, r"(?is)(?=.*rank 0).*microbatch", never=r"no other rank ran"),
    Expected("other_loop_and_evaluation", 0, r"(?is)(?=.*rank 0).*evaluat"),
    Expected("samples_on_rank_0", 0, r"(?is)(?=.*rank 0).*make_figure"),
)  # fmt: skip


class Case(NamedTuple):
    """One expectation with one way of recording and one kind of snapshots of the other ranks."""

    expected: Expected
    recorded: Recorded
    peers: Peers

    @property
    def name(self) -> str:
        outside = "+process" if self.expected.outside else ""
        return f"{self.expected.job}{outside}/{self.recorded}/{self.peers}"

    @property
    def is_kept_aside(self) -> bool:
        """Whether no rule was tuned on this case."""
        return int(hashlib.sha256(self.name.encode()).hexdigest(), 16) % KEPT_ASIDE == 0


def cases() -> Iterator[Case]:
    """Yield all cases."""
    for expected in EXPECTED:
        for recorded in Recorded:
            for peers in Peers:
                yield Case(expected, recorded, peers)


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
    getattr(jobs, job)(
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
