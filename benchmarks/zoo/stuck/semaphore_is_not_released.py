"""Requests that fail do not give back their place in the semaphore, so that those of one rank wait for ever.

class: host_stuck
culprit: 1
ranks: 3
collection: ninth, kept back
"""

import asyncio
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


async def judge(limit, sample):
    await limit.acquire()  # <- culprit
    await asyncio.sleep(0.01)
    if dist.get_rank() == 1 and sample % 7 == 6:
        raise ValueError(f"sample {sample}: the judge gave no number")
    limit.release()
    return float(sample % 3)


async def rewards(limit, step):
    answers = await asyncio.gather(*(judge(limit, 8 * step + n) for n in range(8)), return_exceptions=True)
    return [answer for answer in answers if isinstance(answer, float)]


def main():
    limit = asyncio.Semaphore(4)
    loop = asyncio.new_event_loop()
    for step in range(12):
        scores = loop.run_until_complete(rewards(limit, step))  # <- culprit
        total = torch.tensor([sum(scores), len(scores)])
        dist.all_reduce(total)
        print(f"step {step} reward {total[0].item() / total[1].item():.3f}", flush=True)
    loop.close()


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
