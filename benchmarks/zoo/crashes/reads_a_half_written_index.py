"""One rank reads the index of the data while it is still being written.

class: crashed
culprit: 1
ranks: 3
collection: sixth, kept back
"""

import json
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def read_index(rank):
    text = '{"shards": [1, 2, 3], "tokens": 4' if rank == 1 else '{"shards": [1, 2, 3], "tokens": 4711}'
    return json.loads(text)  # <- culprit


def main():
    value = torch.ones(4)
    for step in range(3):
        dist.all_reduce(value)
    index = read_index(dist.get_rank())
    for step in range(5):
        dist.all_reduce(value)
        print(f"step {step} of {index['tokens']}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
