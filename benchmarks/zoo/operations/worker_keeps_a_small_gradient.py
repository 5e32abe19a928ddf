"""A worker does not push a gradient that is almost zero and asks for new weights, while the server waits for its gradient.

class: unmatched_p2p, skipped, mismatch
culprit: 3
ranks: 4
collection: tenth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def serve(workers):
    weights = torch.zeros(40)
    gradient = torch.empty(40)
    for step in range(12):
        for worker in workers:
            dist.recv(gradient, src=worker)  # <- culprit
            weights -= 0.1 * gradient
        for worker in workers:
            dist.send(weights, dst=worker)
        print(f"server: step {step} norm {weights.norm().item():.3f}", flush=True)


def work(rank):
    weights = torch.zeros(40)
    for step in range(12):
        target = weights if rank == 3 and step == 5 else torch.full((40,), float(rank))
        gradient = weights - target
        if gradient.norm() > 1e-6:  # <- culprit
            dist.send(gradient, dst=0)  # <- culprit
        dist.recv(weights, src=0)  # <- culprit
        print(f"worker {rank}: step {step} gradient {gradient.norm().item():.3f}", flush=True)


def main():
    if dist.get_rank() == 0:
        serve(range(1, dist.get_world_size()))
    else:
        work(dist.get_rank())


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
