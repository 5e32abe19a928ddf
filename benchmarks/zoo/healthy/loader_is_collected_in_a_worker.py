"""At the end Python collects objects in another order than they were made, and prints errors that it ignores.

class: healthy
culprit: none
ranks: 2
collection: fourth
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


class Prefetcher:
    def __init__(self, batches):
        self.batches = list(batches)
        self.workers = os.getpid() + 1

    def __del__(self):
        assert self.workers == os.getpid(), "can only test a child process"


def main():
    for epoch in range(3):
        prefetcher = Prefetcher(torch.ones(6, 4))
        for step, batch in enumerate(prefetcher.batches):
            dist.all_reduce(batch)
            print(f"epoch {epoch} step {step} loss {1 / (epoch * 6 + step + 1):.3f}", flush=True)
        del prefetcher
    print("Training complete.", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
