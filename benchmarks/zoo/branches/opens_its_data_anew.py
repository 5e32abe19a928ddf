"""A rank that is through with its shard opens the next one, which waits for all ranks.

class: skipped, mismatch
culprit: 2
ranks: 3
collection: eighth
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


class Stream:
    def __init__(self, length):
        self.length, self.position = length, 0

    def next(self):
        if self.position == self.length:
            print("opening the next shard", flush=True)
            dist.barrier()  # <- culprit
            self.position = 0
        self.position += 1
        return torch.randn(16)


def main():
    stream = Stream(5 if dist.get_rank() == 2 else 9)
    for step in range(12):
        gradient = stream.next()
        dist.all_reduce(gradient)  # <- culprit
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
