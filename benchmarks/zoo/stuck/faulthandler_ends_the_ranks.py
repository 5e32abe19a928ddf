"""One rank reads from a dead file server; a timer of faulthandler prints all stacks of each rank and ends it.

class: host_stuck
culprit: 1
ranks: 3
collection: third
"""

import faulthandler
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def read_shard(index):
    if dist.get_rank() == 1 and index == 4:
        time.sleep(600)  # <- culprit
    return torch.randn(4)


def main():
    for index in range(8):
        faulthandler.dump_traceback_later(6, exit=True)
        batch = read_shard(index)
        dist.all_reduce(batch)
        print("step", index, "mean", round(batch.mean().item(), 4), flush=True)
    faulthandler.cancel_dump_traceback_later()


dist.init_process_group("gloo", timeout=timedelta(seconds=30))
recorders.start(os.environ["OUTPUTS"], timeout_s=30)  # recorders
main()
dist.destroy_process_group()
