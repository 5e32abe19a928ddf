"""Measure the error of what-if estimates on real ranks: python -m benchmarks.what_if.real_ranks [KIND] [ROUNDS].

Our trainer runs on gloo with a planted fault in every other step; the what-if must predict the mean of the steps
without it. Both kinds of steps are of one job, because the speed of a machine changes by more between two jobs than
the errors that are measured. In each round every job runs once; printed are medians over the rounds and their range.
With `--pipeline` the jobs are those of `gloo_pipeline.py`, of which one has no fault. With `--sleeping` the layers of
other jobs sleep instead of computing, so that their time does not depend on how busy the processors are: the what-if
must predict the step of the same job without the fault of the rank that is asked about.
"""

import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from analyzers import run, traces
from analyzers.columns import Integers, Mask
from analyzers.store import Options
from analyzers.traces import TraceData
from analyzers.traces.clocks import match_collectives
from analyzers.traces.loading import load
from analyzers.traces.model import StepTime
from analyzers.traces.rank_waits import Change, WhatIf
from benchmarks.start_job import start_job
from benchmarks.what_if.gloo_pipeline import Layer

ROOT = Path(__file__).parents[2]
ROUNDS = 5
STEPS = ("--training.steps", "24", "--profiling.profile_freq", "24", "--profiling.profiler_active", "16")
EVERY, FIRST = 2, 2
"""The fault occurs in every other step, from step 2 on."""
SMALL_BATCH = 4
"""The local batch size of most jobs; their steps take 50 to 200 ms."""
JOB = ("--config", str(ROOT / "configs/fsdp.toml"), "--profiling.enable_profiling", *STEPS)
SLEEPING_LAYERS, LAYER_S, DATA_S, SLEEPING_STEPS, WIDTH = 3, 0.1, 0.05, 4, 8
TIMEOUT_S = 300.0
PIPELINE_RANKS = 3
PIPELINE_JOB = str(Path(__file__).with_name("gloo_pipeline.py"))


class Fault(NamedTuple):
    """The trainer's fault `name`: in a job of `ranks` ranks, `rank` takes `seconds` longer in every other step.

    `batch` is the local batch size. A larger one makes longer steps, in which single delays matter less.
    """

    ranks: int
    name: str
    rank: int
    seconds: float
    batch: int = SMALL_BATCH

    def __str__(self) -> str:
        what = "computes" if self.name == "straggler" else "loads data"
        steps = "" if self.batch == SMALL_BATCH else f", batches of {self.batch}"
        return f"rank {self.rank} of {self.ranks} {what} for {self.seconds * 1e3:.0f} ms more{steps}"


FAULTS = [
    Fault(2, "straggler", 0, 0.05),
    Fault(2, "straggler", 1, 0.2),
    Fault(2, "straggler_data", 1, 0.1),
    Fault(3, "straggler_data", 0, 0.3),
    Fault(4, "straggler_data", 1, 0.5),
    Fault(4, "straggler", 2, 0.4),
    Fault(2, "straggler", 0, 0.15, batch=48),
    Fault(2, "straggler", 1, 0.5, batch=48),
    Fault(2, "straggler_data", 0, 0.3, batch=48),
    Fault(2, "straggler_data", 1, 0.08, batch=24),
]


class Slowness(NamedTuple):
    """The seconds by which one rank loads data longer in each step, and the factor by which its layers are slower."""

    rank: int
    data_s: float = 0.0
    slower: float = 1.0

    def __str__(self) -> str:
        loads = f"loads data for {self.data_s * 1e3:.0f} ms more" if self.data_s else ""
        computes = f"computes {self.slower:g} times as long" if self.slower > 1 else ""
        return f"rank {self.rank} {' and '.join(filter(None, (loads, computes)))}"


Job = tuple[int, tuple[Slowness, ...]]
"""The number of ranks, and their faults; the first fault is that of the rank that is asked about."""
JOBS: list[Job] = [
    (2, (Slowness(1, data_s=0.2),)),
    (2, (Slowness(0, slower=2.0),)),
    (2, (Slowness(1, data_s=0.5, slower=1.5),)),
    (3, (Slowness(0, data_s=1.0),)),
    (3, (Slowness(2, slower=1.2),)),
    (4, (Slowness(0, data_s=2.0),)),
    (4, (Slowness(3, slower=1.5),)),
    (4, (Slowness(1, data_s=0.6), Slowness(2, data_s=0.3))),
]


class Answer(NamedTuple):
    """The mean step of a recording and the step that a what-if predicts, in ms.

    `slower` is by what share the other ranks work longer in the steps with the fault.
    """

    step: float
    predicted: float
    slower: float = 0.0


def trained(fault: Fault) -> tuple[Answer, Answer]:
    """Train with the fault in every other step; return the answer for all steps, and that for those without it."""
    planted = (
        "--faults.name", fault.name, "--faults.rank", str(fault.rank), "--faults.seconds", str(fault.seconds),
        "--faults.step", str(FIRST), "--faults.every", str(EVERY), "--training.local_batch_size", str(fault.batch),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        start_job("trainer", *JOB, *planted, "--job.dump_folder", folder, ranks=fault.ranks)
        data = analysed(Path(folder))
        slower = slowdown_of_others(Path(folder), fault.rank)
    steps = slowest_rank(data)
    healthy = [step.dur_ns / 1e6 for step in steps if (step.step - FIRST) % EVERY]
    found = answer_of(data, lambda one: one.rank == fault.rank)
    return found._replace(slower=slower), Answer(sum(healthy) / len(healthy), 0.0)


def slowdown_of_others(folder: Path, rank: int) -> float:
    """Return by what share the other ranks work longer in the steps with the fault of `rank` than in those without.

    A what-if takes their work from the recorded steps: if the machine runs them at another speed while `rank` is slow,
    the prediction is off by this share in the steps with the fault, which are half of the steps.
    """
    recordings, _ = load(run.discover(folder).of(run.Kind.TRACE), Options())
    matched = match_collectives(recordings)
    if matched is None:
        return 0.0
    step, work = matched.column("step"), matched.column("work_ns")
    is_faulty = (step - FIRST) % EVERY == 0
    others = [rows for other, rows in zip(matched.ranks, matched.rows_by_rank, strict=True) if other != rank]
    means = [
        statistics.median(mean_work(work[rows], step[rows], is_faulty[rows] == faulty) for rows in others)
        for faulty in (True, False)
    ]
    return means[0] / means[1] - 1


def mean_work(work: Integers, step: Integers, selected: Mask) -> float:
    """Return the work of a rank in the selected rows as a mean over their steps."""
    return float(work[selected].sum()) / max(1, len(set(step[selected].tolist())))


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
    """Print a case: recorded, predicted and measured steps as medians over the rounds, and the range of each.

    Then follow the error of the medians, the errors of the rounds, how much longer the other ranks work in the steps
    with the fault, and what remains of the errors without that.
    """
    was, predicted, real = [a.step for a in faulty], [a.predicted for a in faulty], [a.step for a in ideal]
    error = statistics.median(predicted) / statistics.median(real) - 1
    errors = [one.predicted / other.step - 1 for one, other in zip(faulty, ideal, strict=True)]
    slower = [a.slower for a in faulty]
    # Half of the steps have the fault.
    rest = [(1 + error) / (1 + share / EVERY) - 1 for error, share in zip(errors, slower, strict=True)]
    shares = " | ".join(in_percent(values) for values in (errors, slower, rest))
    print(f"| {name} | {shown(was)} | {shown(predicted)} | {shown(real)} | {error:+.1%} | {shares} |", flush=True)


def in_percent(values: Sequence[float]) -> str:
    """Return the median of some shares, and their range."""
    return f"{statistics.median(values):+.1%} ({min(values):+.1%} to {max(values):+.1%})"


def shown(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def main() -> None:
    """Print a row for each case after each round, the last of which counts."""
    rounds = next((int(word) for word in sys.argv[1:] if word.isdecimal()), ROUNDS)
    kinds = {"--pipeline": measured_stages, "--sleeping": measured_sleeps}
    measure = next((kinds[word] for word in sys.argv[1:] if word in kinds), measured_faults)
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


def measured_sleeps() -> Iterator[tuple[str, Answer, Answer]]:
    """Run each job once, with and without its first fault; yield its name and both answers."""
    ideal = {job: (job[0], job[1][1:]) for job in JOBS}
    answers = {job: slept(*job) for job in dict.fromkeys((*JOBS, *ideal.values()))}
    for job in JOBS:
        yield f"{job[0]} ranks: {', '.join(map(str, job[1]))}", answers[job], answers[ideal[job]]


def slept(ranks: int, faults: tuple[Slowness, ...]) -> Answer:
    """Run a job, and return the answer for the rank of its first fault."""
    with tempfile.TemporaryDirectory() as folder:
        run_sleeping(Path(folder), ranks, faults)
        return answer(Path(folder), lambda one: one.rank == (faults[0].rank if faults else -1))


def run_sleeping(folder: Path, ranks: int, faults: tuple[Slowness, ...]) -> None:
    """Run the job on `ranks` forked ranks.

    Raises:
        RuntimeError: A rank failed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
    forked = multiprocessing.get_context("fork")
    jobs = [forked.Process(target=run_rank, args=(folder, rank, ranks, address[1], faults)) for rank in range(ranks)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(TIMEOUT_S)
    if any(job.exitcode for job in jobs):
        raise RuntimeError(f"ranks ended with {[job.exitcode for job in jobs]}")


def run_rank(folder: Path, rank: int, ranks: int, port: int, faults: tuple[Slowness, ...]) -> None:
    """Train as one rank, and write its trace to `folder`."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    own = next((one for one in faults if one.rank == rank), Slowness(rank))
    model = torch.nn.Sequential(*[Layer(LAYER_S * own.slower) for _ in range(SLEEPING_LAYERS)])
    steps = schedule(wait=1, warmup=1, active=SLEEPING_STEPS)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=steps) as profiler:
        for _ in range(2 + SLEEPING_STEPS):
            with record_function("data_wait"):
                time.sleep(DATA_S + own.data_s)
            model(torch.ones(1, WIDTH)).sum().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            profiler.step()
    profiler.export_chrome_trace(str(folder / f"rank{rank}_trace.json"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
