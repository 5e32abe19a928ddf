"""One rank adds the norm of its gradients over the wrong dimension of the mesh.

class: mismatch, skipped
culprit: 3
ranks: 4
collection: tenth, kept back
logs: mismatch 1,3 | mismatch 1,2 | mismatch
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from workbench import recorders  # recorders


def norm_dimension(mesh, options):
    return mesh.get_group(options.get("norm_dim", "tp"))


def main():
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    options = {} if rank != 3 else {"norm_dim": "dp"}  # a file of settings that is older on this host
    for step in range(10):
        gradient = torch.randn(30)
        dist.all_reduce(gradient, group=mesh.get_group("dp"))
        if step >= 3:
            squares = gradient.square().sum()
            dist.all_reduce(squares, group=norm_dimension(mesh, options))  # <- culprit
            gradient *= min(1.0, 1.0 / squares.sqrt().item())
        loss = torch.tensor(2.0 / (step + 1))
        dist.all_reduce(loss, group=mesh.get_group("dp"))  # <- culprit
        print(f"step {step} loss {loss.item() / 2:.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
