"""The search for hyperparameters prunes the trial on the main process, which begins the next one while the others still train.

class: mismatch, skipped
culprit: 0
ranks: 3
pattern: https://github.com/optuna/optuna-examples/issues/101
collection: seventh, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


class TrialPruned(Exception):
    pass


def train(trial, rate):
    weights = torch.ones(32)
    for step in range(8):
        gradient = torch.randn(32)
        dist.all_reduce(gradient)
        weights -= rate * gradient
        if dist.get_rank() == 0 and trial == 1 and step == 3:
            raise TrialPruned
        print(f"trial {trial} step {step}", flush=True)


def main():
    for trial in range(3):
        rate = torch.tensor([0.1 / (trial + 1)], dtype=torch.float64)
        dist.broadcast(rate, src=0)  # <- culprit
        try:
            train(trial, rate.item())
        except TrialPruned:
            print(f"trial {trial} was pruned", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
