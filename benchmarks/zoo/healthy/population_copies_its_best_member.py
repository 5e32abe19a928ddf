"""A population of four: the member with the largest rate diverges, and takes the weights and the rate of the best one.

class: healthy
culprit: none
ranks: 4
collection: tenth, kept back
"""

import math
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


class Member:
    def __init__(self, rate):
        self.weights, self.rate = torch.ones(10), rate

    def train(self, steps):
        for _ in range(steps):
            self.weights -= self.rate * 4 * self.weights**3
        return self.weights.pow(4).sum().item()


def exploit(member, loss):
    mine = torch.tensor([loss if math.isfinite(loss) else 1e9, member.rate])
    everyone = [torch.empty(2) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    losses = [row[0].item() for row in everyone]
    best, worst = losses.index(min(losses)), losses.index(max(losses))
    weights = member.weights.clone()
    dist.broadcast(weights, src=best)
    if dist.get_rank() == worst:
        member.weights, member.rate = weights, everyone[best][1].item() * 0.8
        print(f"member {worst}: takes the weights of member {best}, new rate {member.rate:.4f}", flush=True)


def main():
    rank = dist.get_rank()
    member = Member(rate=(0.01, 0.03, 5.0, 0.02)[rank])
    for generation in range(6):
        loss = member.train(steps=8)
        print(f"member {rank}: generation {generation} rate {member.rate:.4f} loss {loss:.5f}", flush=True)
        exploit(member, loss)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
