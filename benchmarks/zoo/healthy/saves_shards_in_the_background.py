"""A sharded model is saved asynchronously, over a group of its own, while the training goes on.

class: healthy
culprit: none
ranks: 2
collection: tenth, kept back
"""

import os
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from workbench import recorders  # recorders


def shared_folder():
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    return Path(folder[0])


def main():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    savers = dist.new_group(backend="gloo", timeout=timedelta(seconds=60))
    folder, pending = shared_folder(), None
    for step in range(1, 19):
        x = torch.randn(8, 16)
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 6 == 0:
            if pending:
                pending.result()
            weights, state = get_state_dict(model, optimizer)
            pending = dcp.async_save(
                {"model": weights, "optimizer": state}, checkpoint_id=folder / f"step-{step}", process_group=savers
            )
            print(f"step {step}: saving in the background", flush=True)
        print(f"step {step} loss {loss.item():.3f}", flush=True)
    pending.result()
    print("last checkpoint is complete", flush=True)
    dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
