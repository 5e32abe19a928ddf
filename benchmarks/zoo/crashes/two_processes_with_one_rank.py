"""The ranks come from a table of hosts in which one number stands twice, so that one rank never joins.

class: startup, crashed
culprit: any
ranks: 3
collection: fifth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    value = torch.ones(4)
    for step in range(4):
        dist.all_reduce(value)
        print(f"step {step}", flush=True)


hosts = {"0": 0, "1": 1, "2": 1}
rank = hosts[os.environ["RANK"]]
print(f"joining as rank {rank} of 3", flush=True)
dist.init_process_group("gloo", rank=rank, world_size=3, timeout=timedelta(seconds=8))  # <- culprit
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
