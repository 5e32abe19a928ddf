"""Several all-reduces are in flight at a time, and waited for later.

class: healthy
culprit: none
ranks: 2
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    for _ in range(12):
        buckets = [torch.randn(100 * (k + 1)) for k in range(4)]
        handles = [dist.all_reduce(bucket, async_op=True) for bucket in buckets]
        for handle in handles:
            handle.wait()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
