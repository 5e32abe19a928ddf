"""Measure the error of what-if estimates on real ranks: python -m benchmarks.what_if.real_ranks [--pipeline] [ROUNDS].

Our trainer runs on gloo with a planted fault in every other step; the what-if must predict the mean of the steps
without it. Both kinds of steps are of one job, because the speed of a machine changes by more between two jobs than
the errors that are measured. In each round every job runs once; printed are medians over the rounds and their range.
With `--pipeline` the jobs are those of `gloo_pipeline.py`, of which one has no fault.
"""

import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from analyzers import run, traces
from analyzers.traces import TraceData
from analyzers.traces.across.what_if import Change, WhatIf
from analyzers.traces.model import StepTime
from benchmarks.start_job import start_job

ROOT = Path(__file__).parents[2]
ROUNDS = 5
STEPS = ("--training.steps", "24", "--profiling.profile_freq", "24", "--profiling.profiler_active", "16")
EVERY, FIRST = 2, 2
"""The fault occurs in every other step, from step 2 on."""
JOB = ("--config", str(ROOT / "configs/fsdp.toml"), "--profiling.enable_profiling", *STEPS)
PIPELINE_RANKS = 3
PIPELINE_JOB = str(Path(__file__).with_name("gloo_pipeline.py"))


class Fault(NamedTuple):
    """The trainer's fault `name`: in a job of `ranks` ranks, `rank` takes `seconds` longer in every other step."""

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


def trained(fault: Fault) -> tuple[Answer, Answer]:
    """Train with the fault in every other step; return the answer for all steps, and that for those without it."""
    planted = (
        "--faults.name", fault.name, "--faults.rank", str(fault.rank), "--faults.seconds", str(fault.seconds),
        "--faults.step", str(FIRST), "--faults.every", str(EVERY),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        start_job("trainer", *JOB, *planted, "--job.dump_folder", folder, ranks=fault.ranks)
        data = analysed(Path(folder))
    steps = slowest_rank(data)
    healthy = [step.dur_ns / 1e6 for step in steps if (step.step - FIRST) % EVERY]
    found = answer_of(data, lambda one: one.rank == fault.rank)
    return found, Answer(sum(healthy) / len(healthy), 0.0)


def piped(slow: int) -> Answer:
    """Run the pipeline with a slow stage (-1: none), and return the answer for this stage."""
    with tempfile.TemporaryDirectory() as folder:
        start_job(PIPELINE_JOB, folder, str(slow), ranks=PIPELINE_RANKS)
        return answer(Path(folder), lambda one: one.stage == slow and one.change == Change.STAGE_AS_OTHERS)


def answer(folder: Path, is_asked: Callable[[WhatIf], bool]) -> Answer:
    """Return the answer to one what-if from the traces in a folder; one that is not listed saves nothing."""
    return answer_of(analysed(folder), is_asked)


def analysed(folder: Path) -> TraceData:
    """Return the answers of the analyzer of traces on the traces in a folder."""
    return traces.analyze(run.discover(folder).of(run.Kind.TRACE)).data


def slowest_rank(data: TraceData) -> list[StepTime]:
    """Return the steps of the rank whose steps take longest."""
    return max((rank.step_times for rank in data.ranks), key=lambda steps: sum(step.dur_ns for step in steps))


def answer_of(data: TraceData, is_asked: Callable[[WhatIf], bool]) -> Answer:
    """Return the answer to one what-if, as a mean over all recorded steps."""
    steps = slowest_rank(data)
    total = sum(step.dur_ns for step in steps)
    saved = next((one.saved_ns for one in data.what_ifs if is_asked(one)), 0)
    return Answer(total / len(steps) / 1e6, (total - saved) / len(steps) / 1e6)


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
    measure = measured_stages if "--pipeline" in sys.argv else measured_faults
    answers: dict[str, list[tuple[Answer, Answer]]] = {}
    for number in range(rounds):
        print(f"round {number + 1}, load {os.getloadavg()[0]:.1f}", flush=True)
        for name, faulty, ideal in measure():
            answers.setdefault(name, []).append((faulty, ideal))
        for name, pairs in answers.items():
            printed(name, [faulty for faulty, _ in pairs], [ideal for _, ideal in pairs])


def measured_faults() -> Iterator[tuple[str, Answer, Answer]]:
    """Run each job once; yield its name, the answer for it, and that for its steps without the fault."""
    for fault in FAULTS:
        yield str(fault), *trained(fault)


def measured_stages() -> Iterator[tuple[str, Answer, Answer]]:
    """Run the pipeline without a slow stage and with each; yield a name and both answers for each slow stage."""
    ideal = piped(-1)
    for slow in range(PIPELINE_RANKS):
        yield f"stage {slow} of {PIPELINE_RANKS} takes twice as long", piped(slow), ideal


if __name__ == "__main__":
    main()
