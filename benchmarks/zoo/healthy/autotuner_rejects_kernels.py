"""The autotuner tries kernels that run out of memory and prints each failure; the fastest of the others is used.

class: healthy
culprit: none
ranks: 2
collection: eighth
"""

import logging
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def tune():
    for block in (256, 128, 64):
        try:
            if block > 64:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        except torch.OutOfMemoryError:
            logging.exception("ignoring the choice BLOCK=%d", block)
            continue
        print(f"AUTOTUNE mm(512x512) BLOCK={block} 0.0123 ms 100.0%", flush=True)


def main():
    tune()
    for step in range(8):
        gradient = torch.randn(16)
        dist.all_reduce(gradient)
        print(f"step {step} loss {2 / (step + 2):.3f}", flush=True)
    print("training finished", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
