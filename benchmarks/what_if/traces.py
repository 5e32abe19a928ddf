"""Measure the error of what-if estimates from traces: python -m benchmarks.what_if.traces.

Jobs are simulated with a fault and without it, so that the ideal time is known: the what-if for the first must predict
the time of the second. Exits with 1 if an error exceeds `ERROR_AT_MOST`.
"""

import hashlib
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from analyzers import run, traces
from analyzers.traces.rank_waits import Change
from benchmarks.traced_job import US, Collective, Fault, Host, Op, Part, job, llama
from benchmarks.what_if.pipeline_job import Pipeline, write_job

ERROR_AT_MOST = 0.05
STEPS = 6
PIPELINE: list[Part] = [
    Host("dataloader", 500 * US),
    *[Op("aten::mm", "sm90_xmma_gemm_bf16bf16_bf16f32", 400 * US, (4096, 4096, 4096))] * 10,
    Collective("allreduce", 1 << 22, 300 * US),
    *[Op("aten::mm", "sm90_xmma_gemm_bf16bf16_bf16f32", 400 * US, (4096, 4096, 4096))] * 10,
    Collective("allreduce", 1 << 22, 300 * US),
]
LOADER = [Fault(rank, host="dataloader", ns=20_000 * US) for rank in range(4)]
TWO_LATE = [Fault(1, host="dataloader", ns=20_000 * US), Fault(2, host="dataloader", ns=15_000 * US)]


def changed(parts: Sequence[Part], loader_ns: int | None = None, transfer: float = 1.0) -> list[Part]:
    """Return a step with another data-loading time, and with all_reduces that take `transfer` times as long."""
    return [
        replace(part, ns=loader_ns)
        if isinstance(part, Host) and loader_ns is not None
        else replace(part, ns=round(part.ns * transfer))
        if isinstance(part, Collective) and part.name == "allreduce"
        else part
        for part in parts
    ]


class Case(NamedTuple):
    """A job with faults, a what-if question, and the job that the answer must predict."""

    name: str
    world: int
    parts: Sequence[Part]
    faults: Sequence[Fault]
    asked: tuple[Change, str, int | None]
    ideal_parts: Sequence[Part]
    ideal_faults: Sequence[Fault] = ()


def one_rank(name: str, world: int, parts: Sequence[Part], fault: Fault) -> Case:
    return Case(name, world, parts, [fault], (Change.RANK_AS_OTHERS, "", fault.rank), parts)


CASES = [
    one_rank("kernels of rank 2 take 1.3 times as long", 4, llama(), Fault(2, 1.3)),
    one_rank("kernels of rank 0 take 2.0 times as long", 8, llama(), Fault(0, 2.0)),
    one_rank("rank 1 loads data for 20 ms more", 4, llama(), Fault(1, host="dataloader", ns=20_000 * US)),
    one_rank("rank 3 loads data for 5 ms more", 4, PIPELINE, Fault(3, host="dataloader", ns=5_000 * US)),
    one_rank("rank 1 computes 1.5 times as long", 2, PIPELINE, Fault(1, 1.5)),
    one_rank("rank 5 computes 1.1 times as long", 8, PIPELINE, Fault(5, 1.1)),
    Case("all ranks load data for 20 ms more", 4, llama(), LOADER, (Change.WITHOUT_PHASE, "data", None),
         changed(llama(), 0)),
    Case("the same with few, long kernels", 4, PIPELINE, LOADER, (Change.WITHOUT_PHASE, "data", None),
         changed(PIPELINE, 0)),
    Case("one of two late ranks as the others", 4, llama(), TWO_LATE, (Change.RANK_AS_OTHERS, "", 1), llama(),
         TWO_LATE[1:]),
    Case("all_reduces twice as fast", 4, changed(PIPELINE, transfer=10), (),
         (Change.COLLECTIVE_TWICE_AS_FAST, "allreduce", None), changed(PIPELINE, transfer=5)),
]  # fmt: skip


class StageCase(NamedTuple):
    """A job of pipeline stages, one of which is slow or has too many layers, and the job without this fault."""

    name: str
    job: Pipeline
    stage: int
    factor: float
    ideal: Pipeline

    @property
    def faults(self) -> list[Fault]:
        """The fault of each rank of the slow stage."""
        replicas = self.job.replicas
        return [Fault(rank, self.factor) for rank in range(self.stage * replicas, (self.stage + 1) * replicas)]

    @property
    def kept_aside(self) -> bool:
        """Whether the case was not looked at until the rule was finished; a hash of the name says so."""
        return hashlib.sha256(self.name.encode()).digest()[0] % 4 == 0


def slow(name: str, job: Pipeline, stage: int, factor: float) -> StageCase:
    return StageCase(name, job, stage, factor, job)


STAGE_CASES = [
    slow("stage 1 of 2 computes 1.5 times as long", Pipeline((4, 4)), 1, 1.5),
    slow("stage 2 of 4 computes 2.0 times as long", Pipeline((3, 3, 3, 3)), 2, 2.0),
    slow("stage 0 of 3 computes 1.3 times as long", Pipeline((4, 4, 4), described=False, fused=False), 0, 1.3),
    slow("stage 0 of 2, on two ranks, computes 1.6 times", Pipeline((4, 4), replicas=2), 0, 1.6),
    slow("stage 1 of 3, on two ranks, computes 1.4 times", Pipeline((3, 3, 3), 2, described=False), 1, 1.4),
    slow("stage 3 of 4, uneven, computes 1.5 times", Pipeline((4, 3, 4, 4), microbatches=6), 3, 1.5),
    StageCase("stage 2 of 4 has 5 layers, the others 3", Pipeline((3, 3, 5, 3)), 2, 1.0, Pipeline((3, 3, 3, 3))),
    slow("stage 0 of 2, no collective, 1.5 times", Pipeline((4, 4), norm=False, fused=False), 0, 1.5),
]


def window(folder: Path) -> traces.TraceData:
    return traces.analyze(run.discover(folder).of(run.Kind.TRACE)).data


def main() -> int:
    errors = [error_of(case) for case in CASES] + [error_of_stage(case) for case in STAGE_CASES]
    return int(max(map(abs, errors)) > ERROR_AT_MOST)


def error_of(case: Case) -> float:
    """Print one case with the times of its steps, and return the relative error of the predicted time."""
    with tempfile.TemporaryDirectory() as folder:
        job(Path(folder, "faulty"), case.world, STEPS, case.parts, faults=case.faults)
        job(Path(folder, "ideal"), case.world, STEPS, case.ideal_parts, faults=case.ideal_faults)
        faulty, ideal = window(Path(folder, "faulty")), window(Path(folder, "ideal"))
    saved = next((r.saved_ns for r in faulty.what_ifs if (r.change, r.name, r.rank) == case.asked), 0)
    return printed(case.name, faulty, saved, ideal)


def error_of_stage(case: StageCase, steps: int = STEPS) -> float:
    """Print one case of pipeline stages like `error_of`, and return the relative error of the predicted time."""
    with tempfile.TemporaryDirectory() as folder:
        write_job(Path(folder, "faulty"), case.job, steps, case.faults)
        write_job(Path(folder, "ideal"), case.ideal, steps)
        faulty, ideal = window(Path(folder, "faulty")), window(Path(folder, "ideal"))
    saved = next((r.saved_ns for r in faulty.what_ifs if r.stage == case.stage), 0)
    return printed(case.name + " (kept aside)" * case.kept_aside, faulty, saved, ideal)


def printed(name: str, faulty: traces.TraceData, saved_ns: int, ideal: traces.TraceData) -> float:
    before, best = steps_ns(faulty), steps_ns(ideal)
    error = (before - saved_ns) / best - 1
    steps = len(faulty.ranks[0].step_times)
    times = " ".join(f"{ns / 1e6 / steps:9.2f}" for ns in (before, saved_ns, before - saved_ns, best))
    print(f"{name:64} ms a step: was, saved, predicted, ideal {times} error {error:+.1%}", flush=True)
    return error


def steps_ns(data: traces.TraceData) -> int:
    """Return the total time of the recorded steps on the slowest rank, in ns."""
    return max(sum(step.dur_ns for step in account.step_times) for account in data.ranks)


if __name__ == "__main__":
    sys.exit(main())
