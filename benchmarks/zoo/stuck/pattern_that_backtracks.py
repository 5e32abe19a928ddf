"""A text on one rank makes a regular expression try billions of ways.

class: host_stuck
culprit: 1
ranks: 2
collection: third
"""

import os
import re
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

WORDS = re.compile(r"^(\w+\s?)+$")


def clean(text):
    return bool(WORDS.match(text))  # <- culprit


def main():
    rank = dist.get_rank()
    for step in range(10):
        text = "a" * 60 + "!" if rank == 1 and step == 4 else "a good text"
        kept = torch.tensor([float(clean(text))])
        dist.all_reduce(kept)
        print(f"rank {rank} step {step} kept {kept.item()}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
