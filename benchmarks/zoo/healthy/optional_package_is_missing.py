"""A fast kernel is not installed; the script prints why and takes the slow one.

class: healthy
culprit: none
ranks: 2
collection: third
"""

import os
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

try:
    import fused_kernels_of_nobody
except ImportError:
    traceback.print_exc()
    print("ERROR: fused kernels are not available, falling back to eager attention", flush=True)
    fused_kernels_of_nobody = None


def attention(query):
    return torch.softmax(query @ query.T, -1) @ query


def main():
    for step in range(10):
        output = attention(torch.randn(16, 8)).mean().reshape(1)
        dist.all_reduce(output)
        if dist.get_rank() == 0:
            print(f"iter {step}: loss {output.item():.4f}, time 1.20ms", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
