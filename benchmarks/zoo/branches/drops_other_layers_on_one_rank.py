"""Layers are dropped at random and gathered only where they run; one rank was resumed and draws other numbers.

class: mismatch, skipped
culprit: 1
ranks: 3
pattern: https://github.com/deepspeedai/DeepSpeed/issues/1888
collection: ninth, kept back
"""

import os
import random
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


class ShardedLayer:
    def __init__(self, width):
        self.shard = torch.randn(width * width // dist.get_world_size()) / width
        self.width = width

    def __call__(self, hidden):
        shards = [torch.empty_like(self.shard) for _ in range(dist.get_world_size())]
        dist.all_gather(shards, self.shard)  # <- culprit
        return torch.relu(hidden @ torch.cat(shards).view(self.width, self.width))


def main():
    draws = random.Random(42)
    if dist.get_rank() == 1:
        draws.random()  # the state of the generator comes from the checkpoint
    layers = [ShardedLayer(12) for _ in range(6)]
    for step in range(20):
        hidden = torch.randn(4, 12)
        for layer in layers:
            if draws.random() < 0.2:  # <- culprit
                continue
            hidden = layer(hidden)
        gradient = torch.randn(72) * hidden.mean()
        dist.all_reduce(gradient)  # <- culprit
        print(f"step {step} norm {gradient.norm().item():.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
