"""A list on one rank grows in every step and is searched each time, so that its steps take longer and longer.

class: healthy, slow, straggler
culprit: none | 2
ranks: 3
collection: seventh
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    seen = []
    for step in range(20):
        began = time.monotonic()
        if dist.get_rank() == 2:
            seen.append(step)
            time.sleep(0.02 * len(seen))
        dist.all_reduce(torch.ones(4))
        print(f"step {step} took {1000 * (time.monotonic() - began):.0f} ms", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
