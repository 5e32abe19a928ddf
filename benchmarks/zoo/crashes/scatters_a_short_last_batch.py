"""The main process reads each batch and scatters its parts; the last batch has fewer samples than there are ranks.

class: crashed
culprit: 0
ranks: 3
pattern: https://github.com/huggingface/accelerate/issues/961
collection: ninth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def batches():
    data = torch.randn(26, 16)
    yield from data.split(6)


def receive_batch(batch):
    part = torch.empty(2, 16)
    dist.scatter(part, list(batch.chunk(dist.get_world_size())) if batch is not None else None, src=0)  # <- culprit
    return part


def main():
    reader = batches() if dist.get_rank() == 0 else iter([None] * 5)
    model = torch.nn.Linear(16, 1)
    for step, batch in enumerate(reader):
        loss = model(receive_batch(batch)).square().mean()
        average = loss.detach().clone()
        dist.all_reduce(average)
        print(f"step {step} loss {average.item() / dist.get_world_size():.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
