"""All ranks rotate old checkpoints in the shared folder; one finds that its folder has gone already.

class: crashed
culprit: 2
ranks: 3
collection: third
"""

import os
import shutil
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def save(folder, step):
    path = os.path.join(folder, f"checkpoint-{step}")
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, f"rng_state_{dist.get_rank()}.pth"), "w") as file:
        file.write("state")
    return path


def rotate(path):
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(path)
    dist.barrier()
    if dist.get_rank() == 2:
        shutil.rmtree(path)  # <- culprit


def main():
    folder = os.path.join(os.environ["OUTPUTS"], "checkpoints")
    for step in range(0, 500, 100):
        dist.all_reduce(torch.ones(3))
        path = save(folder, step)
        if step == 300:
            rotate(path)
        print(f"{{'loss': {1 / (step + 1):.4f}, 'epoch': {step / 500:.2f}}}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
