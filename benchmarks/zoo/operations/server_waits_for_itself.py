"""The parameter server counts the ranks of the world instead of the workers, and waits for one gradient too many.

class: unmatched_p2p, skipped, mismatch
culprit: 0
ranks: 3
collection: fifth, kept back
logs: unmatched_p2p | unknown
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def serve(steps):
    weights = torch.zeros(32)
    for step in range(steps):
        for _ in range(dist.get_world_size()):
            gradient = torch.empty(32)
            dist.recv(gradient)  # <- culprit
            weights -= 0.1 * gradient
        for worker in range(1, dist.get_world_size()):
            dist.send(weights, dst=worker)
        print(f"update {step} norm {weights.norm().item():.3f}", flush=True)


def work(steps):
    weights = torch.zeros(32)
    for _ in range(steps):
        dist.send(torch.randn(32), dst=0)
        dist.recv(weights, src=0)


def main():
    role = serve if dist.get_rank() == 0 else work
    role(8)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
