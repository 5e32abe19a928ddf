"""One rank fails while it writes the checkpoint, and after the restart no rank can read what it left.

class: crashed
culprit: 1
ranks: 3
restarts: 1
collection: fourth, kept back
"""

import json
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

PATH = os.path.join(os.environ["OUTPUTS"], "state.json")


def save(step, rank):
    if rank == 1:
        with open(PATH, "w") as file:
            file.write('{"step": ')
            file.flush()
            json.dump({"step": step, "generator": torch.Generator()}, file)  # <- culprit


def main():
    rank, begin = dist.get_rank(), 0
    if os.path.exists(PATH):
        with open(PATH) as file:
            begin = json.load(file)["step"]
    for step in range(begin, 12):
        value = torch.ones(4)
        dist.all_reduce(value)
        print(f"step {step} loss {value.mean().item():.3f}", flush=True)
        if step == 6:
            save(step, rank)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
