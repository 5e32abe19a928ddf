"""The profiler of the main process calls a handler with a barrier when its trace is ready.

class: skipped, mismatch
culprit: 0
ranks: 3
collection: sixth, kept back
"""

import contextlib
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def save_trace(profiler):
    print(f"trace of {len(profiler.key_averages())} operators", flush=True)
    dist.barrier()  # <- culprit


def main():
    rank = dist.get_rank()
    with contextlib.ExitStack() as stack:
        profiler = None
        if rank == 0:
            plan = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1)
            profiler = stack.enter_context(torch.profiler.profile(schedule=plan, on_trace_ready=save_trace))
        for step in range(10):
            value = torch.randn(32)
            dist.all_reduce(value)
            if profiler:
                profiler.step()
            print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
