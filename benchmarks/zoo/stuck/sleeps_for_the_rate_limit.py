"""The service that judges samples limits the requests of one rank, which then sleeps for an hour.

class: host_stuck
culprit: 0
ranks: 3
collection: fifth
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def judge(step):
    if step < 6:
        return 1.0
    print("HTTP 429: rate limit reached, trying again in 3600 s", flush=True)
    time.sleep(3600)  # <- culprit
    return 0.0


def main():
    for step in range(10):
        score = torch.tensor([judge(step) if dist.get_rank() == 0 else 0.5])
        dist.all_reduce(score)
        print(f"step {step} score {score.item():.2f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
