"""One rank pauses for two seconds now and then, as its memory is swapped; the others wait, and the job ends well.

class: healthy, slow, straggler
culprit: none | 1
ranks: 3
collection: seventh, kept back
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    for step in range(18):
        time.sleep(0.05)
        if dist.get_rank() == 1 and step % 6 == 5:
            time.sleep(2)
        dist.all_reduce(torch.ones(64))
        print(f"step {step} loss {3 / (step + 1):.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
