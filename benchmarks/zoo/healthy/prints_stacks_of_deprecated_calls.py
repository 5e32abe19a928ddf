"""A library prints the stack of each deprecated call and a warning with a scary text.

class: healthy
culprit: none
ranks: 3
collection: sixth, kept back
"""

import os
import traceback
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def deprecated():
    warnings.warn("old_api() is deprecated and will raise RuntimeError: connection timed out in 3.0", stacklevel=2)
    traceback.print_stack()


def main():
    for step in range(12):
        if step % 5 == 0:
            deprecated()
        value = torch.ones(16)
        dist.all_reduce(value)
        print(f"step {step} loss {1 / (step + 1):.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
