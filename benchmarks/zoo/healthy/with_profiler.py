"""PyTorch's profiler records some steps and exports its trace.

class: healthy, slow
culprit: none
ranks: 2
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

from workbench import recorders  # recorders


def main():
    rank = dist.get_rank()

    def export(profiler):
        profiler.export_chrome_trace(f"/tmp/zoo_trace_{os.getpid()}.json")
        os.remove(f"/tmp/zoo_trace_{os.getpid()}.json")

    plan = schedule(wait=1, warmup=1, active=2, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=export, with_stack=True) as profiler:
        for _ in range(8):
            x = torch.randn(32, 32) @ torch.randn(32, 32)
            dist.all_reduce(x)
            profiler.step()
    print("rank", rank, "done")


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
