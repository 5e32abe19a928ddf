"""A decorator repeats the step of a rank whose tracker failed after the gradients had been reduced.

class: skipped, mismatch
culprit: 1
ranks: 3
collection: fifth
"""

import functools
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def retry(times):
    def around(function):
        @functools.wraps(function)
        def wrapper(*args):
            for attempt in range(1, times + 1):
                try:
                    return function(*args)
                except OSError as error:
                    print(f"attempt {attempt} of {times} failed: {error}", flush=True)
            raise RuntimeError("giving up")

        return wrapper

    return around


class Tracker:
    def __init__(self, fails_at):
        self.fails_at = fails_at

    def log(self, step, loss):
        if step == self.fails_at:
            self.fails_at = None
            raise OSError(110, "Connection timed out")
        print(f"step {step} loss {loss:.4f}", flush=True)


@retry(3)
def train_step(step, model, tracker):
    model.zero_grad()
    loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)  # <- culprit
    tracker.log(step, loss.item())


def main():
    model = torch.nn.Linear(16, 4)
    tracker = Tracker(fails_at=7 if dist.get_rank() == 1 else None)
    for step in range(12):
        train_step(step, model, tracker)
    dist.barrier()
    print("training finished", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
