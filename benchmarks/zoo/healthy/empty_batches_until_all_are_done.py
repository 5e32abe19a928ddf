"""The ranks have different numbers of batches; who is done goes on with empty ones until all are.

class: healthy
culprit: none
ranks: 3
collection: eighth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    rank, step = dist.get_rank(), 0
    batches = [torch.randn(4, 8) for _ in range(5 + 2 * rank)]
    while True:
        has_data = torch.tensor([float(step < len(batches))])
        dist.all_reduce(has_data, op=dist.ReduceOp.MAX)
        if not has_data.item():
            break
        batch = batches[step] if step < len(batches) else torch.zeros(0, 8)
        gradient = batch.sum(dim=0)
        dist.all_reduce(gradient)
        print(f"step {step} samples {len(batch)}", flush=True)
        step += 1
    print("all ranks ran out of data, training finished", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
