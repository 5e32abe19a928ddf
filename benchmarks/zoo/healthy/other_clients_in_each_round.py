"""Federated training: in each round two of four clients are drawn and train with the server in a group made for the round.

class: healthy
culprit: none
ranks: 5
collection: tenth, kept back
"""

import os
import random
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def train_locally(weights):
    time.sleep(0.1)
    return weights - 0.1 * (weights - dist.get_rank())


def run_round(number, weights, clients):
    group = dist.new_group([0, *clients])
    if dist.get_rank() not in (0, *clients):
        return weights
    dist.broadcast(weights, src=0, group=group)
    update = train_locally(weights) if dist.get_rank() else torch.zeros_like(weights)
    dist.reduce(update, dst=0, group=group)
    dist.destroy_process_group(group)
    return update / len(clients) if dist.get_rank() == 0 else weights


def main():
    rank = dist.get_rank()
    draws = random.Random(7)
    weights = torch.zeros(10)
    for number in range(8):
        clients = sorted(draws.sample(range(1, dist.get_world_size()), 2))
        weights = run_round(number, weights, clients)
        if rank == 0:
            print(f"round {number} clients {clients} weight {weights.mean().item():.3f}", flush=True)
        elif rank in clients:
            print(f"client {rank}: took part in round {number}", flush=True)
    dist.broadcast(weights, src=0)
    print(f"final weight {weights.mean().item():.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
