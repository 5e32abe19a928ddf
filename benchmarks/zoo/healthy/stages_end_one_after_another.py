"""The stages of a pipeline end seconds apart, as the last one writes what it has learnt.

class: healthy, slow
culprit: none
ranks: 3
collection: second
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    for _ in range(12):
        activation = torch.randn(8)
        if rank > 0:
            dist.recv(activation, src=rank - 1)
        if rank < last:
            dist.send(activation, dst=rank + 1)
    time.sleep(2.0 * rank)
    print("stage", rank, "wrote its weights", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
