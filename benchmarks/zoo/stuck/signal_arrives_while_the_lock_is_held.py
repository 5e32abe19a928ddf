"""The handler of a signal writes to the journal, for which it takes the lock that the interrupted function holds.

class: host_stuck
culprit: 1
ranks: 3
collection: tenth, kept back
"""

import os
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


class Journal:
    def __init__(self, path):
        self.file, self.lock = path.open("a"), threading.Lock()

    def write(self, *lines):
        with self.lock:  # <- culprit
            for line in lines:
                self.file.write(line + "\n")
                self.file.flush()
                time.sleep(0.02)


def main():
    rank = dist.get_rank()
    journal = Journal(Path(os.environ["OUTPUTS"]) / f"journal_{rank}.txt")
    signal.signal(signal.SIGUSR1, lambda *_: journal.write("notice: the job ends soon"))  # <- culprit
    if rank == 1:
        threading.Timer(2.5, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    for step in range(12):
        gradient = torch.randn(24)
        dist.all_reduce(gradient)
        journal.write(*(f"step {step} sample {n} used" for n in range(24)))  # <- culprit
        print(f"step {step} norm {gradient.norm().item():.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
