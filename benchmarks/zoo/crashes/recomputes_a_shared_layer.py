"""A layer that is used twice is recomputed in backward in the old way, which marks its parameters as ready twice.

class: crashed
except: unused_parameters
culprit: any
ranks: 2
pattern: https://github.com/huggingface/accelerate/issues/389
collection: ninth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from workbench import recorders  # recorders


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.shared, self.head = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 2)

    def forward(self, x):
        hidden = self.embed(x)
        for _ in range(2):
            hidden = checkpoint(self.shared, hidden, use_reentrant=True).relu()
        return self.head(hidden)


def main():
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(10):
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()  # <- culprit
        optimizer.step()
        print(f"step {step} loss {loss.item():.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
