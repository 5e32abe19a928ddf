"""The main process destroys its process group after the training, while the others still evaluate.

class: skipped, mismatch, dead, early_exit
culprit: 0
ranks: 3
collection: fifth
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def evaluate():
    correct = torch.ones(1)
    for batch in range(4):
        dist.all_reduce(correct)
        print(f"evaluation batch {batch}", flush=True)


def main():
    value = torch.ones(16)
    for step in range(8):
        dist.all_reduce(value)
        value /= dist.get_world_size()
        print(f"step {step}", flush=True)
    if dist.get_rank() == 0:
        dist.destroy_process_group()  # <- culprit
        time.sleep(5)
        print("model exported", flush=True)
        return
    evaluate()
    dist.destroy_process_group()


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
