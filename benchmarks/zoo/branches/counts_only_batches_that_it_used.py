"""New weights go to the samplers after each fourth step, but one rank does not count a step whose prompts were too long.

class: mismatch, skipped
culprit: 2
ranks: 4
pattern: https://github.com/PrimeIntellect-ai/verifiers/pull/436
collection: tenth, kept back
logs: mismatch | collective_timeout | unknown
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

LONGEST = 512


class PolicyTrainer:
    def __init__(self):
        self.rank = dist.get_rank()
        self.global_step, self.last_loaded_step = 0, 0
        self.weights = torch.randn(96)

    def prompts(self, batch):
        length = 900 if (self.rank, batch) == (2, 9) else 200 + 10 * batch
        return torch.randn(96) if length <= LONGEST else None

    def train_step(self, batch):
        prompts = self.prompts(batch)
        gradient = torch.zeros(96) if prompts is None else prompts
        dist.all_reduce(gradient)  # <- culprit
        self.weights -= 0.001 * gradient
        if prompts is not None:
            self.global_step += 1

    def sync_samplers(self):
        dist.broadcast(self.weights, src=0)  # <- culprit
        self.last_loaded_step = self.global_step

    def train(self):
        for batch in range(24):
            if self.global_step - self.last_loaded_step >= 4:  # <- culprit
                self.sync_samplers()
            self.train_step(batch)
            print(f"[rank {self.rank}] batch {batch} global_step {self.global_step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
PolicyTrainer().train()
dist.destroy_process_group()
