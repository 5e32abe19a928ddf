"""Two dimensions of groups, used alike by all ranks.

class: healthy
culprit: none
ranks: 4
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from workbench import recorders  # recorders


def main():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for _ in range(10):
        dist.all_reduce(torch.randn(4), group=mesh.get_group("tp"))
        dist.all_reduce(torch.randn(6), group=mesh.get_group("dp"))
        dist.all_reduce(torch.randn(1))


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
