"""Sharded weights are gathered for each token, and one rank's answer ends earlier than those of the others.

class: skipped, mismatch
culprit: 2
ranks: 3
collection: third
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

EOS = 1


class Sharded:
    def __init__(self):
        self.shard = torch.randn(16, 4)

    def forward(self, token):
        parts = [torch.empty_like(self.shard) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, self.shard)
        return torch.cat(parts)[token]


def generate(model, length):
    tokens = [5]
    while tokens[-1] != EOS and len(tokens) < 20:
        model.forward(tokens[-1])
        tokens.append(EOS if len(tokens) >= length else 7)
    return tokens


def main():
    rank = dist.get_rank()
    model = Sharded()
    for round_number in range(3):
        answer = generate(model, 4 if rank == 2 and round_number == 1 else 9)
        reward = torch.tensor([float(len(answer))])
        dist.all_reduce(reward)  # <- culprit
        print(f"[rank {rank}] rollout {round_number}: {len(answer)} tokens, reward {reward.item()}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
