"""Measure the error of what-if estimates on real ranks: python -m benchmarks.what_if.real_ranks [--pipeline] [ROUNDS].

Our trainer runs on gloo with a planted fault, and without it; the what-if of the first must predict the step of the
second. In each round every job runs once, so that jobs that are compared run at the same load; printed are medians over
the rounds and their range. With `--pipeline` the jobs are those of `gloo_pipeline.py`.
"""

import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from analyzers import run, traces
from analyzers.traces.across.what_if import Change, WhatIf
from benchmarks.start_job import start_job

ROOT = Path(__file__).parents[2]
ROUNDS = 5
STEPS = ("--training.steps", "12", "--profiling.profile_freq", "12", "--profiling.profiler_active", "6")
JOB = ("--config", str(ROOT / "configs/fsdp.toml"), "--profiling.enable_profiling", *STEPS)
PIPELINE_RANKS = 3
PIPELINE_JOB = str(Path(__file__).with_name("gloo_pipeline.py"))


class Fault(NamedTuple):
    """The trainer's fault `name`: in a job of `ranks` ranks, `rank` takes `seconds` longer in each step."""

    ranks: int
    name: str
    rank: int
    seconds: float

    def __str__(self) -> str:
        what = "computes" if self.name == "straggler" else "loads data"
        return f"rank {self.rank} of {self.ranks} {what} for {self.seconds * 1e3:.0f} ms more"


FAULTS = [
    Fault(2, "straggler", 0, 0.05),
    Fault(2, "straggler", 1, 0.2),
    Fault(2, "straggler_data", 1, 0.1),
    Fault(3, "straggler_data", 0, 0.3),
    Fault(4, "straggler_data", 1, 0.5),
    Fault(4, "straggler", 2, 0.4),
]


class Answer(NamedTuple):
    """The mean step of a recording in ms, the step that a what-if predicts, and its `saved_ns` a step in ms."""

    step: float
    predicted: float


def trained(ranks: int, fault: Fault | None) -> Answer:
    """Train and return the answer for the planted rank."""
    planted = () if fault is None else (
        "--faults.name", fault.name, "--faults.rank", str(fault.rank), "--faults.seconds", str(fault.seconds),
        "--faults.step", "2",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        start_job("trainer", *JOB, *planted, "--job.dump_folder", folder, ranks=ranks)
        return answer(Path(folder), lambda one: fault is not None and one.rank == fault.rank)


def piped(slow: int) -> Answer:
    """Run the pipeline with a slow stage (-1: none), and return the answer for this stage."""
    with tempfile.TemporaryDirectory() as folder:
        start_job(PIPELINE_JOB, folder, str(slow), ranks=PIPELINE_RANKS)
        return answer(Path(folder), lambda one: one.stage == slow and one.change == Change.STAGE_AS_OTHERS)


def answer(folder: Path, is_asked: Callable[[WhatIf], bool]) -> Answer:
    """Return the answer to one what-if from the traces in a folder; one that is not listed saves nothing."""
    data = traces.analyze(run.discover(folder).of(run.Kind.TRACE)).data
    steps = max(([step.dur_ns for step in rank.step_times] for rank in data.ranks), key=sum)
    saved = next((one.saved_ns for one in data.what_ifs if is_asked(one)), 0)
    return Answer(sum(steps) / len(steps) / 1e6, (sum(steps) - saved) / len(steps) / 1e6)


def printed(name: str, faulty: Sequence[Answer], ideal: Sequence[Answer]) -> None:
    """Print a case: recorded, predicted and measured steps as medians over the rounds, and the range of each."""
    was, predicted, real = [a.step for a in faulty], [a.predicted for a in faulty], [a.step for a in ideal]
    error = statistics.median(predicted) / statistics.median(real) - 1
    print(f"| {name} | {shown(was)} | {shown(predicted)} | {shown(real)} | {error:+.1%} |", flush=True)


def shown(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def main() -> None:
    """Print a row for each case after each round, the last of which counts."""
    rounds = next((int(word) for word in sys.argv[1:] if word.isdecimal()), ROUNDS)
    is_pipeline = "--pipeline" in sys.argv
    jobs = [(PIPELINE_RANKS, slow) for slow in (-1, 0, 1, 2)] if is_pipeline else [
        *((ranks, None) for ranks in sorted({fault.ranks for fault in FAULTS})), *((f.ranks, f) for f in FAULTS)
    ]  # fmt: skip
    answers: dict[object, list[Answer]] = {job: [] for job in jobs}
    for number in range(rounds):
        print(f"round {number + 1}, load {os.getloadavg()[0]:.1f}", flush=True)
        for ranks, fault in jobs:
            answers[ranks, fault].append(piped(fault) if is_pipeline else trained(ranks, fault))
        for ranks, fault in jobs:
            if fault not in (None, -1):
                name = f"stage {fault} of {ranks} takes twice as long" if is_pipeline else str(fault)
                printed(name, answers[ranks, fault], answers[ranks, -1 if is_pipeline else None])


if __name__ == "__main__":
    main()
