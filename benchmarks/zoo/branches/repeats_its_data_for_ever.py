"""The stream of one rank was opened with `repeat`, so that its epoch has no end; the others validate.

class: mismatch, skipped
culprit: 1
ranks: 3
pattern: https://github.com/Lightning-AI/litData/issues/340
collection: seventh
"""

import itertools
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def batches(rank):
    shard = [torch.randn(8, 4) for _ in range(6)]
    return itertools.cycle(shard) if rank == 1 else iter(shard)


def validate():
    hits = torch.zeros(2)
    dist.all_reduce(hits)
    return hits


def main():
    for step, batch in enumerate(batches(dist.get_rank())):
        gradient = batch.sum(dim=0)
        gradient = gradient[:2]
        dist.all_reduce(gradient)  # <- culprit
        print(f"step {step}", flush=True)
    validate()
    print("validated", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
