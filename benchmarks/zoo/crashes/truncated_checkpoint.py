"""The checkpoint that one rank loads was cut.

class: crashed, dead
culprit: 1
ranks: 3
collection: first
"""

import os
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def load(path):
    return torch.load(path)  # <- culprit


def main():
    rank = dist.get_rank()
    with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        torch.save({"weights": torch.ones(100)}, file.name)
        if rank == 1:
            os.truncate(file.name, 700)
        weights = load(file.name)["weights"]
    for _ in range(3):
        dist.all_reduce(weights)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
