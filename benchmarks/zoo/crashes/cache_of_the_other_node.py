"""The main process writes a cache below /tmp, which the ranks of the second node do not have.

class: crashed
culprit: 2, 3 | 2 | 3
ranks: 4
collection: fourth
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def cache_folder(rank):
    return os.path.join(os.environ["OUTPUTS"], f"tmp_of_node_{rank // 2}")


def main():
    rank = dist.get_rank()
    folder = cache_folder(rank)
    if rank == 0:
        os.makedirs(folder)
        torch.save(torch.arange(32.0), os.path.join(folder, "tokens.pt"))
        print("cached 32 tokens", flush=True)
    dist.barrier()
    tokens = torch.load(os.path.join(folder, "tokens.pt"))  # <- culprit
    for step in range(8):
        dist.all_reduce(tokens)
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
