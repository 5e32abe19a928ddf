"""Samples are fetched by asynchronous tasks, one of which fails on one rank: the error is a group of exceptions.

class: crashed
culprit: 1
ranks: 3
collection: fourth, kept back
"""

import asyncio
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


async def fetch(name):
    await asyncio.sleep(0)
    return float(name)  # <- culprit


async def fetch_all(names):
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(fetch(name)) for name in names]
    return [task.result() for task in tasks]


def main():
    rank = dist.get_rank()
    for step in range(12):
        names = ["1", "2", "three" if rank == 1 and step == 5 else "3"]
        values = torch.tensor(asyncio.run(fetch_all(names)))
        dist.all_reduce(values)
        print(f"step {step}: {values.sum().item():.1f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
