"""The batch size is halved until a batch fits; all ranks agree after each trial that ran out of memory.

class: healthy
culprit: none
ranks: 2
collection: fifth
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def trial(size):
    if size > 32:
        raise torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {size * 32}.00 MiB. GPU 0 has a total capacity of 1.50 GiB "
            "of which 20.19 MiB is free."
        )


def largest_batch():
    size = 256
    while True:
        fits = torch.ones(1)
        try:
            trial(size)
        except torch.OutOfMemoryError as error:
            print(f"batch size {size} does not fit: {error}", flush=True)
            fits.zero_()
        dist.all_reduce(fits, op=dist.ReduceOp.MIN)
        if fits.item():
            return size
        size //= 2


def main():
    size = largest_batch()
    print(f"batch size {size}", flush=True)
    for step in range(12):
        loss = torch.randn(size).square().mean()
        dist.all_reduce(loss)
        print(f"step {step} loss {loss.item():.4f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
