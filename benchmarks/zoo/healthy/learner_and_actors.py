"""A learner takes the trajectories of three actors in the order in which they come, and sends new weights or the end.

class: healthy
culprit: none
ranks: 4
collection: tenth, kept back
"""

import os
import random
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

STOP, GO_ON = 0.0, 1.0


def learn(actors, updates):
    weights = torch.zeros(12)
    trajectory = torch.empty(13)
    running = set(actors)
    update = 0
    while running:
        actor = dist.recv(trajectory)
        if update < updates:
            weights += 0.1 * trajectory[1:]
            update += 1
            if update % 6 == 0:
                print(f"learner: update {update} return {trajectory[0].item():.2f}", flush=True)
        command = GO_ON if update < updates else STOP
        dist.send(torch.cat([torch.tensor([command]), weights]), dst=actor)
        if command == STOP:
            running.remove(actor)
    print(f"learner: {updates} updates, all actors have been stopped", flush=True)


def act(rank):
    draws = random.Random(rank)
    answer = torch.ones(13)
    episodes = 0
    while answer[0] == GO_ON:
        time.sleep(draws.uniform(0.02, 0.2))
        trajectory = torch.randn(13) + answer
        dist.send(trajectory, dst=0)
        dist.recv(answer, src=0)
        episodes += 1
    print(f"actor {rank}: stopped after {episodes} episodes", flush=True)


def main():
    if dist.get_rank() == 0:
        learn(range(1, dist.get_world_size()), updates=30)
    else:
        act(dist.get_rank())
    dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
