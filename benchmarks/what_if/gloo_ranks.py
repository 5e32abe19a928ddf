"""Measure what-ifs on real gloo ranks whose layers sleep: python -m benchmarks.what_if.gloo_ranks [ROUNDS].

The what-if of a job with planted faults must predict the step of the same job without the fault of the rank that is
asked about. All jobs run once in each round; printed are medians over the rounds and their range. A layer sleeps
instead of computing, so that its time does not depend on how busy the processors are. The ranks are forked from this
process, which has imported torch.
"""

import multiprocessing
import os
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from benchmarks.what_if.gloo_pipeline import Layer
from benchmarks.what_if.real_ranks import ROUNDS, Answer, answer, printed

LAYERS, FORWARD_S, DATA_S, STEPS, WIDTH = 3, 0.1, 0.05, 4, 8
TIMEOUT_S = 300.0


class Fault(NamedTuple):
    """The seconds by which one rank loads data longer in each step, and the factor by which its layers are slower."""

    rank: int
    data_s: float = 0.0
    slower: float = 1.0

    def __str__(self) -> str:
        loads = f"loads data for {self.data_s * 1e3:.0f} ms more" if self.data_s else ""
        computes = f"computes {self.slower:g} times as long" if self.slower > 1 else ""
        return f"rank {self.rank} {' and '.join(filter(None, (loads, computes)))}"


Job = tuple[int, tuple[Fault, ...]]
"""The number of ranks, and their faults; the first fault is that of the rank that is asked about."""
JOBS: list[Job] = [
    (2, (Fault(1, data_s=0.2),)),
    (2, (Fault(0, slower=2.0),)),
    (2, (Fault(1, data_s=0.5, slower=1.5),)),
    (3, (Fault(0, data_s=1.0),)),
    (3, (Fault(2, slower=1.2),)),
    (4, (Fault(0, data_s=2.0),)),
    (4, (Fault(3, slower=1.5),)),
    (4, (Fault(1, data_s=0.6), Fault(2, data_s=0.3))),
]


def answered(job: Job) -> Answer:
    """Run a job, and return the answer for the rank of its first fault."""
    ranks, faults = job
    with tempfile.TemporaryDirectory() as folder:
        run_job(Path(folder), ranks, faults)
        return answer(Path(folder), lambda one: one.rank == (faults[0].rank if faults else -1))


def main() -> None:
    """Print a row for each case after each round, the last of which counts."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    ideal = {job: (job[0], job[1][1:]) for job in JOBS}
    answers: dict[Job, list[Answer]] = {job: [] for job in (*JOBS, *ideal.values())}
    for number in range(rounds):
        print(f"round {number + 1}, load {os.getloadavg()[0]:.1f}", flush=True)
        for job, own in answers.items():
            own.append(answered(job))
        for job in JOBS:
            name = f"{job[0]} ranks: {', '.join(map(str, job[1]))}"
            printed(name, answers[job], answers[ideal[job]])


def run_job(folder: Path, ranks: int, faults: tuple[Fault, ...]) -> None:
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


def run_rank(folder: Path, rank: int, ranks: int, port: int, faults: tuple[Fault, ...]) -> None:
    """Train as one rank, and write its trace to `folder`."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    fault = next((one for one in faults if one.rank == rank), Fault(rank))
    model = torch.nn.Sequential(*[Layer(FORWARD_S * fault.slower) for _ in range(LAYERS)])
    steps = schedule(wait=1, warmup=1, active=STEPS)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=steps) as profiler:
        for _ in range(2 + STEPS):
            with record_function("data_wait"):
                time.sleep(DATA_S + fault.data_s)
            model(torch.ones(1, WIDTH)).sum().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            profiler.step()
    profiler.export_chrome_trace(str(folder / f"rank{rank}_trace.json"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
