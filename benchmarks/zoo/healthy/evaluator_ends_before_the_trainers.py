"""One rank only collects the first answers for a report and ends well before the others, which train in a group of their own.

class: healthy, slow
culprit: none
ranks: 4
collection: ninth, kept back
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def report():
    answers = torch.empty(16)
    for _ in range(5):
        dist.recv(answers, src=0)
        print(f"received {answers.numel()} answers, mean {answers.mean().item():.3f}", flush=True)
    print("report is written, evaluator exits", flush=True)


def train(group):
    for step in range(20):
        gradient = torch.randn(16)
        dist.all_reduce(gradient, group=group)
        if dist.get_rank() == 0 and step < 5:
            dist.send(gradient, dst=3)
        time.sleep(0.2)
        print(f"step {step} loss {2 / (step + 1):.3f}", flush=True)
    print("training finished", flush=True)


def main():
    trainers = dist.new_group([0, 1, 2])
    if dist.get_rank() == 3:
        report()
    else:
        train(trainers)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
