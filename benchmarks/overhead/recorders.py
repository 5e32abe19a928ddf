"""Measure the cost per step of the always-on recorders: step log, heartbeat and Flight Recorder.

    python benchmarks/overhead/recorders.py [--step-ms 50] [--steps 200]

Runs a loop of six phases with and without them, in turn and in the same process, and compares processor time.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import torch.distributed as dist

from workbench.recorders import RecorderOptions, Recorders

PHASES = ("data_wait", "fwd", "bwd", "grad_clip", "optim", "loss_sync")


def work() -> None:
    """Do the work of a phase, the same with and without recorders."""
    sum(range(100))


def bare(_step: int) -> None:
    for _ in PHASES:
        work()


def recorded(recorders: Recorders) -> Callable[[int], None]:
    def run(step: int) -> None:
        with recorders.step(step) as line:
            for name in PHASES:
                with recorders.phase(name):
                    work()
            line.update(tokens=1, loss=1.0, grad_norm=1.0)

    return run


def cost(run: Callable[[int], None], first: int, steps: int) -> float:
    """Return the processor seconds per step."""
    started = time.process_time()
    for step in range(first, first + steps):
        run(step)
    return (time.process_time() - started) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-ms", type=float, default=50.0)
    parser.add_argument("--steps", type=int, default=500)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options = RecorderOptions(folder=folder)
        Recorders.prepare(options)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        recorders = Recorders(options)
        runs = {"bare": bare, "recorded": recorded(recorders)}
        found: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(10):
            for name, run in runs.items():
                found[name].append(cost(run, turn * asked.steps + 1, asked.steps))
        recorders.close()
        dist.destroy_process_group()
    added = statistics.median(found["recorded"]) - statistics.median(found["bare"])
    share = added / (asked.step_ms / 1e3)
    print(f"{added * 1e6:.1f} us of processor time a step, {share:.3%} of a step of {asked.step_ms:g} ms")
    sys.exit(share >= 0.01)


if __name__ == "__main__":
    main()
