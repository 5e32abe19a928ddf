"""One node allows few open files, and the reader opens all shards at once.

class: crashed
culprit: 1
ranks: 3
collection: fifth
"""

import os
import resource
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    rank = dist.get_rank()
    if rank == 1:
        most = len(os.listdir("/proc/self/fd")) + 12
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    shards = []
    for step in range(200):
        shards.append(os.open(__file__, os.O_RDONLY))  # <- culprit
        count = torch.tensor([len(shards)])
        dist.all_reduce(count)
        print(f"step {step}: {count.item()} shards are open", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
