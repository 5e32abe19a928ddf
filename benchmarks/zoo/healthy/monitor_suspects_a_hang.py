"""A thread of the script warns that the ranks may hang whenever a step takes longer than half a second.

class: healthy
culprit: none
ranks: 3
collection: eighth
"""

import os
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


class Monitor(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.seen = time.monotonic()

    def run(self):
        while True:
            time.sleep(0.2)
            if time.monotonic() - self.seen > 0.5:
                print("WARNING: no progress, rank may hang; NCCL timeout is possible", flush=True)


def main():
    monitor = Monitor()
    monitor.start()
    for step in range(6):
        time.sleep(0.9 if step == 3 else 0.05)
        gradient = torch.randn(16)
        dist.all_reduce(gradient)
        monitor.seen = time.monotonic()
        print(f"step {step} loss {2 / (step + 2):.3f}", flush=True)
    print("training finished", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
