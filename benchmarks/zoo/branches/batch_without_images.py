"""A batch without images does not go through the vision tower, whose weights are sharded over all ranks.

class: mismatch, skipped
culprit: 1
ranks: 3
pattern: https://github.com/pytorch/pytorch/issues/44957
collection: tenth, kept back
logs: mismatch 0,1 | mismatch 1,2 | mismatch
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from workbench import recorders  # recorders


class VisionLanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.vision = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 16))
        self.language = nn.Sequential(nn.Embedding(100, 16), nn.Linear(16, 16))
        self.head = nn.Linear(16, 100)

    def forward(self, tokens, images):
        hidden = self.language(tokens)
        if images is not None:  # <- culprit
            hidden = hidden + self.vision(images).unsqueeze(1)  # <- culprit
        return self.head(hidden)  # <- culprit


def batches(rank):
    for step in range(12):
        images = None if rank == 1 and step == 5 else torch.randn(2, 12)
        yield torch.randint(100, (2, 7)), images


def main():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = VisionLanguageModel()
    for part in (model.vision, model.language, model.head, model):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step, (tokens, images) in enumerate(batches(dist.get_rank())):
        loss = nn.functional.cross_entropy(model(tokens, images).flatten(0, 1), tokens.flatten())  # <- culprit
        loss.backward()  # <- culprit
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
