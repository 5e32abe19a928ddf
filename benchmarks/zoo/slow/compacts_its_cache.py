"""One rank compacts a cache for some seconds in the middle of the training, and prints what it does.

class: healthy, slow, straggler
culprit: none | 1
ranks: 3
collection: sixth, kept back
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    for step in range(14):
        if step == 7 and dist.get_rank() == 1:
            print("cache is full, evicting: 4000 errors ignored, retrying", flush=True)
            time.sleep(3)
        value = torch.ones(16)
        dist.all_reduce(value)
        print(f"step {step} loss {1 / (step + 1):.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=15))
recorders.start(os.environ["OUTPUTS"], timeout_s=15)  # recorders
main()
dist.destroy_process_group()
