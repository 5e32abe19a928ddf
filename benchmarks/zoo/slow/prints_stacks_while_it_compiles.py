"""A timer of faulthandler prints the stacks of every rank while one of them prepares its kernels for some seconds.

class: healthy, slow
culprit: none | 0
ranks: 2
collection: third
"""

import faulthandler
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def tune(rank):
    if rank == 0:
        for _ in range(5):
            time.sleep(1)


def main():
    faulthandler.dump_traceback_later(2, repeat=True)
    tune(dist.get_rank())
    for step in range(10):
        loss = torch.rand(4)
        dist.all_reduce(loss)
        print(f"step {step} loss {loss.mean().item():.3f}", flush=True)
    faulthandler.cancel_dump_traceback_later()
    print("Training complete.", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=15))
recorders.start(os.environ["OUTPUTS"], timeout_s=15)  # recorders
main()
dist.destroy_process_group()
