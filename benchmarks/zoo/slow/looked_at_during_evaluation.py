"""Rank 0 evaluates for some seconds while the others wait in a barrier; the dumps are taken during the evaluation.

class: healthy, slow, unknown
culprit: none
ranks: 3
looked_at_after: 7
collection: second
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def evaluate():
    for batch in range(60):
        time.sleep(0.25)
        print("evaluated batch", batch, flush=True)


def main():
    for _ in range(20):
        dist.all_reduce(torch.randn(30))
    if dist.get_rank() == 0:
        evaluate()
    dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=90))
recorders.start(os.environ["OUTPUTS"], timeout_s=90)  # recorders
main()
dist.destroy_process_group()
