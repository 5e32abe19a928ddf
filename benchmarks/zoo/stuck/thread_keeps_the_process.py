"""A thread that reports the state of one rank is no daemon, so that its process never ends after the training.

class: host_stuck
culprit: 1
ranks: 3
collection: fifth
logs: unknown
"""

import os
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def report():
    while True:
        time.sleep(1)  # <- culprit


def main():
    if dist.get_rank() == 1:
        threading.Thread(target=report, name="reporter").start()
    for step in range(8):
        value = torch.ones(4)
        dist.all_reduce(value)
        print(f"step {step}", flush=True)
    print("training finished", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
