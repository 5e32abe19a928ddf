"""Episodes last as long as the policy survives, so that in each step another rank is the last one to bring its gradient.

class: healthy, slow, straggler
culprit: any
ranks: 3
collection: tenth, kept back
"""

import os
import random
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from workbench import recorders  # recorders


def roll_out(policy, draws):
    log_probabilities = []
    for _ in range(draws.choice((3, 5, 8, 25))):
        time.sleep(0.03)
        log_probabilities.append(torch.log_softmax(policy(torch.randn(4)), 0)[0])
    return torch.stack(log_probabilities)


def main():
    rank = dist.get_rank()
    draws = random.Random(100 + rank)
    policy = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
    for step in range(16):
        episode = roll_out(policy, draws)
        optimizer.zero_grad()
        (-episode.mean()).backward()
        for parameter in policy.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        print(f"rank {rank} step {step} episode_length {len(episode)}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
