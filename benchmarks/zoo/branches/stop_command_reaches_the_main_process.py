"""Only rank 0 gets the command to stop; all ranks meet at a barrier, which does not carry the decision to the others.

class: mismatch, skipped
culprit: 0
ranks: 3
pattern: https://github.com/talmolab/sleap-nn/pull/471
collection: tenth, kept back
"""

import os
import queue
import threading
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


class RemoteControl:
    """Commands that the user's window sends to the main process."""

    def __init__(self, is_main):
        self.commands = queue.Queue()
        if is_main:
            threading.Timer(1.5, self.commands.put, ("stop",)).start()

    def wants_stop(self):
        try:
            return self.commands.get_nowait() == "stop"
        except queue.Empty:
            return False


class Trainer:
    def __init__(self):
        self.rank, self.should_stop = dist.get_rank(), False
        self.control = RemoteControl(self.rank == 0)

    def fit(self):
        for step in range(200):
            gradient = torch.randn(128)
            dist.all_reduce(gradient)  # <- culprit
            threading.Event().wait(0.05)
            if step % 10 == 0:
                print(f"step {step} norm {gradient.norm().item():.2f}", flush=True)
            if self.control.wants_stop():
                self.should_stop = True
            dist.barrier()
            if self.should_stop:  # <- culprit
                break
        self.test()

    def test(self):
        predictions = [torch.empty(10) for _ in range(dist.get_world_size())]
        dist.all_gather(predictions, torch.rand(10))  # <- culprit
        print(f"test accuracy {torch.cat(predictions).mean().item():.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
Trainer().fit()
dist.destroy_process_group()
