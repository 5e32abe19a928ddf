"""A timer guards the reading of a shard, but one path returns without stopping it, so that it fires in the training.

class: crashed
culprit: 1
ranks: 3
collection: ninth, kept back
"""

import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def on_alarm(number, frame):
    raise TimeoutError("reading the shard timed out after 3 seconds")  # <- culprit


def read_shard(cached):
    signal.signal(signal.SIGALRM, on_alarm)
    signal.alarm(3)
    if cached:
        return torch.zeros(64)
    shard = torch.randn(64)
    signal.alarm(0)
    return shard


def main():
    shard = read_shard(cached=dist.get_rank() == 1)
    for step in range(60):
        gradient = shard * step
        time.sleep(0.1)
        dist.all_reduce(gradient)
        if step % 5 == 0:
            print(f"step {step} norm {gradient.norm().item():.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
