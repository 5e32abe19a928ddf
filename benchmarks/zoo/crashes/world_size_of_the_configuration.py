"""The world size comes from a configuration file that says one rank more than the launcher starts.

class: startup, crashed
culprit: any
ranks: 3
collection: second, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

CONFIGURATION = {"nodes": 1, "devices": 4}


def main():
    dist.all_reduce(torch.ones(4))
    dist.barrier()


world_size = CONFIGURATION["nodes"] * CONFIGURATION["devices"]
dist.init_process_group(  # <- culprit
    "gloo", rank=int(os.environ["RANK"]), world_size=world_size, timeout=timedelta(seconds=8)
)
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
