"""Two pairs of ranks share each layer, and the pairs average their gradients over the other dimension of the mesh.

class: healthy
culprit: none
ranks: 4
collection: tenth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from workbench import recorders  # recorders


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(12, 48), nn.Linear(48, 12)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def average_gradients(model, group):
    for parameter in model.parameters():
        local = parameter.grad.to_local()
        dist.all_reduce(local, group=group)
        local /= group.size()


def main():
    torch.manual_seed(3)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = parallelize_module(FeedForward(), mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(mesh["dp"].get_local_rank())
    for step in range(12):
        x = torch.randn(6, 12)
        loss = (model(x) - x).square().mean()
        loss.backward()
        average_gradients(model, mesh.get_group("dp"))
        optimizer.step()
        optimizer.zero_grad()
        print(f"dp {mesh['dp'].get_local_rank()} step {step} loss {loss.item():.4f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
