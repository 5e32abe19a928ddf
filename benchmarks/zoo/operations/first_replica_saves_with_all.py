"""Only the ranks of the first replica save, but the call has no group, so that it waits for all ranks.

class: mismatch, skipped, order_cycle
culprit: 0, 1 | 2, 3
ranks: 4
pattern: https://github.com/pytorch/pytorch/issues/152310
collection: tenth, kept back
"""

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from workbench import recorders  # recorders


def main():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
    weight = distribute_tensor(torch.ones(16, 8), mesh["shard"], [Shard(0)])
    replica = mesh["replica"].get_local_rank()
    for step in range(1, 10):
        gradient = torch.randn(8, 8)
        dist.all_reduce(gradient, group=mesh.get_group("replica"))
        weight.to_local().sub_(0.01 * gradient)
        loss = torch.tensor([2.0 / step])
        dist.all_reduce(loss)
        print(f"replica {replica} step {step} loss {loss.item() / 4:.3f}", flush=True)
        if step % 5 == 0 and replica == 0:
            dcp.save({"weight": weight}, checkpoint_id=Path(os.environ["OUTPUTS"]) / f"step-{step}")  # <- culprit
            print(f"saved step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
