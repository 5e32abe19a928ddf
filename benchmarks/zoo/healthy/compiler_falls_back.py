"""A kernel cannot be compiled on any rank; the traceback is logged as a warning, and the eager code takes over.

class: healthy
culprit: none
ranks: 2
collection: fourth, kept back
"""

import logging
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

log = logging.getLogger("torch._dynamo")


class BackendCompilerFailed(RuntimeError):
    pass


def compiled(function):
    try:
        raise BackendCompilerFailed("backend='inductor' raised: CalledProcessError: gcc returned 1")
    except BackendCompilerFailed:
        log.warning("WON'T CONVERT %s\ndue to:", function.__name__, exc_info=True)
        return function


def main():
    layer = compiled(torch.nn.functional.gelu)
    for epoch in range(3):
        for step in range(4):
            value = layer(torch.randn(4))
            dist.all_reduce(value)
        print(f"epoch {epoch} finished, accuracy {0.5 + epoch / 10:.2f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
