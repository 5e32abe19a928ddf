"""A checkpoint is written by a thread, whose error is raised by the main thread when the next one is due.

class: crashed
culprit: 0
ranks: 3
collection: fifth
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def write(state, step):
    time.sleep(0.2)
    if "scheduler" not in state:
        raise ValueError(f"checkpoint of step {step} has no scheduler state")  # <- culprit


def main():
    pending, value = None, torch.ones(8)
    with ThreadPoolExecutor(1) as pool:
        for step in range(12):
            dist.all_reduce(value)
            value /= dist.get_world_size()
            print(f"step {step}", flush=True)
            if dist.get_rank() == 0 and step % 4 == 3:
                if pending:
                    pending.result()
                pending = pool.submit(write, {"model": value.clone()}, step)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
