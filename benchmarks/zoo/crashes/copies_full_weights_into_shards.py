"""The weights of a checkpoint are copied into a model that has been sharded in the meantime.

class: crashed
culprit: any
ranks: 2
collection: tenth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from workbench import recorders  # recorders


def load_pretrained(model, weights):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])  # <- culprit


def main():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    fully_shard(model, mesh=mesh)
    print(f"loading {len(weights)} tensors of the pretrained model", flush=True)
    load_pretrained(model, weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(8):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
