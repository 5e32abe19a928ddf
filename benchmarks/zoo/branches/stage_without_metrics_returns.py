"""A pipeline stage has no layer that is monitored, and returns before the collective that joins all reports.

class: skipped, mismatch
culprit: 3
ranks: 4
pattern: https://github.com/bo-ke/llm-internal-medicine/pull/45
collection: second
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


class Monitor:
    def __init__(self, layers):
        self.layers = layers

    def report(self, step):
        local = {f"layer{index}/norm": float(index + step) for index in self.layers}
        if not local:
            return None  # <- culprit
        reports = [None] * dist.get_world_size()
        dist.all_gather_object(reports, local)  # <- culprit
        return reports


def main():
    rank = dist.get_rank()
    monitor = Monitor([] if rank == 3 else [2 * rank, 2 * rank + 1])
    for step in range(1, 6):
        dist.all_reduce(torch.randn(32))
        if step % 2 == 0:
            monitor.report(step)
    dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
