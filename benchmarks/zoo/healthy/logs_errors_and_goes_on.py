"""A flaky data source raises now and then; the loop logs the traceback, tries again and trains on.

class: healthy
culprit: none
ranks: 2
collection: first
"""

import logging
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def fetch(step, attempt):
    if step % 4 == 2 and attempt == 0:
        raise TimeoutError(f"read of shard {step} timed out")
    return torch.randn(6)


def batch(step):
    for attempt in range(3):
        try:
            return fetch(step, attempt)
        except TimeoutError:
            logging.exception("ERROR: could not read, trying again")
    raise AssertionError


def main():
    for step in range(12):
        x = batch(step)
        dist.all_reduce(x)
        if dist.get_rank() == 0:
            print(f"step {step} loss {x.mean().item():.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
