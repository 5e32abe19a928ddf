"""A parameter server takes gradients from whoever is first; the workers have different numbers of batches.

class: healthy
culprit: none
ranks: 3
collection: fifth, kept back
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

STOP = -1.0


def serve():
    weights, at_work = torch.zeros(16), dist.get_world_size() - 1
    while at_work:
        message = torch.empty(17)
        worker = dist.recv(message)
        if message[0].item() == STOP:
            at_work -= 1
            print(f"worker {worker} is done", flush=True)
            continue
        weights -= 0.1 * message[1:]
        dist.send(weights, dst=worker)


def work(batches):
    weights = torch.zeros(16)
    for batch in range(batches):
        time.sleep(0.05)
        dist.send(torch.cat([torch.tensor([float(batch)]), torch.randn(16)]), dst=0)
        dist.recv(weights, src=0)
        print(f"batch {batch} norm {weights.norm().item():.3f}", flush=True)
    dist.send(torch.full((17,), STOP), dst=0)


def main():
    rank = dist.get_rank()
    if rank == 0:
        serve()
    else:
        work(batches=6 * rank)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
