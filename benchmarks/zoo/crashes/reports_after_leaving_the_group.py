"""All ranks leave the process group after the training, and rank 0 then asks for its size to write the report.

class: crashed
culprit: 0
ranks: 3
collection: tenth, kept back
"""

import json
import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


class Run:
    def __init__(self):
        self.rank = dist.get_rank()
        self.losses = []

    def train(self):
        for step in range(15):
            loss = torch.tensor([2 / (step + 1)])
            dist.all_reduce(loss)
            self.losses.append(loss.item())
            print(f"step {step} loss {loss.item():.3f}", flush=True)

    def report(self):
        average = [loss / dist.get_world_size() for loss in self.losses]  # <- culprit
        (Path(os.environ["OUTPUTS"]) / "report.json").write_text(json.dumps({"losses": average}))


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
run = Run()
run.train()
dist.barrier()
dist.destroy_process_group()
if run.rank == 0:
    run.report()  # <- culprit
print("all done", flush=True)
