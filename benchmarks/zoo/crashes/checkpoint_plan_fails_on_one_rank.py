"""The state of one rank cannot be written; the distributed checkpoint raises the error on all ranks.

class: crashed
culprit: 2
ranks: 3
collection: fifth
"""

import os
import threading
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from workbench import recorders  # recorders


def main():
    rank = dist.get_rank()
    weights = torch.randn(16)
    for step in range(6):
        dist.all_reduce(weights)
        weights /= dist.get_world_size()
        print(f"step {step} norm {weights.norm().item():.3f}", flush=True)
    state = {"weights": weights, f"loader_{rank}": threading.Lock() if rank == 2 else step}
    dcp.save(state, checkpoint_id=Path(os.environ["OUTPUTS"]) / "checkpoint")  # <- culprit


dist.init_process_group("gloo", timeout=timedelta(seconds=15))
recorders.start(os.environ["OUTPUTS"], timeout_s=15)  # recorders
main()
dist.destroy_process_group()
