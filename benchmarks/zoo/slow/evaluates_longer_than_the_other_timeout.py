"""The main process evaluates for twelve seconds, for which the group of the others has a timeout of its own.

class: healthy, slow, straggler
culprit: none | 0
ranks: 3
collection: eighth, kept back
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    patient = dist.new_group(timeout=timedelta(seconds=60))
    for step in range(8):
        gradient = torch.randn(16)
        dist.all_reduce(gradient)
        if step == 4:
            if dist.get_rank() == 0:
                print("evaluating 4000 documents", flush=True)
                time.sleep(12)
            dist.barrier(group=patient)
        print(f"step {step} loss {2 / (step + 2):.3f}", flush=True)
    print("training finished", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
