"""A resumed run skips the batches that were already seen, which takes one rank some seconds longer.

class: healthy, slow, straggler
culprit: none | 1
ranks: 3
collection: fifth
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def batches(rank):
    for index in range(60):
        if index < 45:
            time.sleep(0.1 if rank == 1 else 0.01)
            if index % 15 == 0:
                print(f"skipping batch {index} of 45 to resume at step 45", flush=True)
            continue
        yield index


def main():
    for step in batches(dist.get_rank()):
        loss = torch.rand(1)
        dist.all_reduce(loss)
        print(f"step {step} loss {loss.item():.4f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=15))
recorders.start(os.environ["OUTPUTS"], timeout_s=15)  # recorders
main()
dist.destroy_process_group()
