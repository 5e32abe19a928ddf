"""A training script that breaks on one rank: `FAULT=stuck:3:5` makes rank 3 sleep in step 5."""

import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = int(os.environ.get("STEPS", "60"))
STEP_S = 0.1


def load_batch(step, rank):
    kind, culprit, when = (os.environ.get("FAULT") or "none:-1:-1").split(":")
    if rank == int(culprit) and step == int(when):
        if kind == "stuck":
            time.sleep(3600)
        if kind == "raise":
            raise ValueError(f"shard {step} is empty")
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(STEP_S)
    return torch.randn(8, 16), kind if rank == int(culprit) and step == int(when) else ""


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = torch.zeros(4)
    for step in range(STEPS):
        batch, fault = load_batch(step, rank)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if fault != "skip":
            dist.all_reduce(torch.zeros(6 if fault == "shape" else 4) if fault else total)
        print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
