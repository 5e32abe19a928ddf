"""Measure whether plans train in the order in which the cost model of `workbench plan` ranks them.

`python -m benchmarks.advice.plan_order [ROUNDS]`: each job is trained on gloo ranks with settings that the model puts
far apart. In each round every plan runs once, so that plans that are compared run at the same load; the median of the
rounds counts. Printed are the plans, and of all pairs those in the predicted order by their predicted distance.
"""

import os
import statistics
import sys
import tempfile
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from analyzers.steps import analyze as analyze_steps
from benchmarks.start_job import start_job
from trainer.config import load
from trainer.plan.candidates import Candidate, speed_of
from trainer.plan.search import ModelSize, step_time

CONFIG = str(Path(__file__).parents[2] / "configs/fsdp.toml")
STEPS = "8"
ROUNDS = 3
DISTANCES = (0.0, 0.10, 0.20, 0.30, 0.50, 1.0)
"""Bounds of the groups of pairs: by how much the faster plan is predicted to be faster."""


class Job(NamedTuple):
    """A model and the number of ranks that train it."""

    flavor: str
    ranks: int


def choice(replicate: int = 1, shard: int = 1, tensor: int = 1, pipeline: int = 1, batch: int = 4,
           mode: str = "none", option: str = "2") -> Candidate:  # fmt: skip
    """Return settings in float32 without offload."""
    return Candidate(replicate, shard, 1, tensor, pipeline, mode, option, batch, offload=False, dtype="float32")


PLANS = {
    Job("debugmodel_large", 2): [
        choice(shard=2, batch=1, mode="full"), choice(shard=2, batch=1), choice(shard=2, batch=8),
        choice(tensor=2, batch=4), choice(pipeline=2, batch=4),
    ],
    Job("debugmodel", 2): [
        choice(shard=2, batch=1), choice(shard=2, batch=16), choice(shard=2, batch=16, mode="full"),
        choice(tensor=2, batch=4), choice(pipeline=2, batch=4),
    ],
    Job("debugmodel", 4): [
        choice(shard=4, batch=1), choice(shard=4, batch=16), choice(shard=4, batch=16, mode="full"),
        choice(shard=2, tensor=2, batch=4),
    ],
}  # fmt: skip


def predicted(job: Job, plan: Candidate) -> float:
    """Return the tokens a second that the cost model gives a plan."""
    model = ModelSize.of(load(None, ["--job.config_file", CONFIG, "--model.flavor", job.flavor]))
    return step_time(model, plan, speed_of("cpu", job.ranks), 1).tokens_per_second


def measured(job: Job, plan: Candidate) -> float:
    """Return the tokens a second of a real run: those of a step by the median step of the slowest rank."""
    flags = [word for key, value in plan.settings().items() if not isinstance(value, bool)
             for word in (f"--{key}", str(value))]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        fixed = ("--config", CONFIG, "--model.flavor", job.flavor, "--training.steps", STEPS)
        start_job("trainer", *fixed, *flags, "--job.dump_folder", folder, ranks=job.ranks)
        step = max(rank.median_step_s or 0.0 for rank in analyze_steps(folder).data.ranks)
    return plan.batch * 128 * plan.replicate * plan.shard / step


def in_order(rows: dict[Job, list[tuple[float, float]]]) -> None:
    """Print how many pairs of plans of one job have the predicted order, by their predicted distance."""
    pairs = [(max(a, b), min(a, b)) for speeds in rows.values() for a, b in combinations(speeds, 2)]
    for low, high in zip(DISTANCES, (*DISTANCES[1:], float("inf")), strict=True):
        group = [(fast, slow) for fast, slow in pairs if low <= fast[0] / slow[0] - 1 < high]
        right = sum(fast[1] > slow[1] for fast, slow in group)
        print(f"{low:.0%} to {high:.0%} apart: {right} of {len(group)} in order")


def main() -> None:
    """Measure all plans in turn, and print them."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    plans = [(job, plan) for job, own in PLANS.items() for plan in own]
    speeds: dict[tuple[Job, Candidate], list[float]] = {key: [] for key in plans}
    for number in range(rounds):
        print(f"round {number + 1}, load {os.getloadavg()[0]:.1f}", flush=True)
        for key in plans:
            speeds[key].append(measured(*key))
            print(key[0].ranks, key[0].flavor, key[1], f"{speeds[key][-1]:.0f}", file=sys.stderr, flush=True)
        rows: dict[Job, list[tuple[float, float]]] = {job: [] for job in PLANS}
        for job, plan in plans:
            values = speeds[job, plan]
            rows[job].append((predicted(job, plan), statistics.median(values)))
            shown = {key.rpartition(".")[2]: value for key, value in plan.settings().items() if value not in (1, False)}
            print(job.ranks, job.flavor, shown, *(f"{v:.0f}" for v in (*rows[job][-1], min(values), max(values))))
        in_order(rows)


if __name__ == "__main__":
    main()
