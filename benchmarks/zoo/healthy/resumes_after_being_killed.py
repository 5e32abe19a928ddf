"""A rank is killed in the first attempt; torchrun starts all of them again, and they go on from the checkpoint.

class: healthy
culprit: none
ranks: 3
restarts: 2
collection: third, kept back
"""

import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

CHECKPOINT = os.path.join(os.environ["OUTPUTS"], "last_step.txt")


def first_step():
    if not os.path.exists(CHECKPOINT):
        return 0
    with open(CHECKPOINT) as file:
        return int(file.read())


def main():
    rank = dist.get_rank()
    begin = first_step()
    dist.barrier()
    print(f"starting at step {begin}", flush=True)
    for step in range(begin, 20):
        dist.all_reduce(torch.ones(4))
        if rank == 0 and step % 5 == 4:
            with open(CHECKPOINT, "w") as file:
                file.write(str(step + 1))
        print(f"step {step}/20", flush=True)
        if step == 11 and begin == 0 and rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
    print("all steps done", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
