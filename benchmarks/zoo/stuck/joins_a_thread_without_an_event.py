"""One rank joins its prefetching thread, which waits for an event that only the end of the training sets.

class: host_stuck
culprit: 1
ranks: 3
collection: eighth
"""

import os
import threading
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

stopped = threading.Event()


def main():
    thread = threading.Thread(target=stopped.wait, daemon=True)
    thread.start()
    for step in range(8):
        if dist.get_rank() == 1 and step == 5:
            thread.join()  # <- culprit
        gradient = torch.randn(16)
        dist.all_reduce(gradient)
        print(f"step {step}", flush=True)
    stopped.set()


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
