"""The first attempt is ended by a notice, with a checkpoint, the second by a file system, and the third trains to the end.

class: healthy
culprit: none
ranks: 3
restarts: 2
collection: tenth, kept back
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

REQUEUE = 75


def notice_arrived(step):
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    flag = torch.tensor(int(attempt == 0 and step == 6 and dist.get_rank() == 0))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)


def read_shard(step):
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if attempt == 1 and step == 9 and dist.get_rank() == 2:
        raise OSError(116, "Stale file handle", "/mnt/data/shard_00002.bin")
    return torch.randn(32)


def main():
    rank = dist.get_rank()
    checkpoint = Path(os.environ["OUTPUTS"]) / "checkpoints" / f"rank{rank}.pt"
    checkpoint.parent.mkdir(exist_ok=True)
    start, weights = 0, torch.zeros(32)
    if checkpoint.exists():
        state = torch.load(checkpoint)
        start, weights = state["step"], state["weights"]
        print(f"resuming at step {start}", flush=True)
    for step in range(start, 16):
        gradient = read_shard(step)
        dist.all_reduce(gradient)
        weights -= 0.01 * gradient
        print(f"step {step} norm {weights.norm().item():.3f}", flush=True)
        if notice_arrived(step):
            torch.save({"step": step + 1, "weights": weights}, checkpoint)
            dist.barrier()
            print(f"notice from the scheduler: checkpoint at step {step + 1}, exit code {REQUEUE}", flush=True)
            dist.destroy_process_group()
            sys.exit(REQUEUE)
    print("training finished", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
