"""A callback of one rank's logger takes a lock that the same thread holds already.

class: host_stuck
culprit: 2
ranks: 3
collection: eighth
"""

import os
import threading
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

lock = threading.Lock()


def report(text):
    with lock:  # <- culprit
        print(text, flush=True)


def main():
    for step in range(8):
        gradient = torch.randn(16)
        dist.all_reduce(gradient)
        if dist.get_rank() == 2 and step == 4:
            with lock:
                report(f"step {step}")
        else:
            report(f"step {step}")


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
