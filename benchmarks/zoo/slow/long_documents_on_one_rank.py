"""The validation set is split by documents, and one rank has the long ones.

class: healthy, slow, straggler
culprit: none | 2
ranks: 3
collection: eighth
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    for step in range(9):
        gradient = torch.randn(16)
        dist.all_reduce(gradient)
        if step % 4 == 3:
            time.sleep(4 if dist.get_rank() == 2 else 0.3)
            score = torch.ones(1)
            dist.all_reduce(score)
            print("validated", flush=True)
        print(f"step {step} loss {2 / (step + 2):.3f}", flush=True)
    print("training finished", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
