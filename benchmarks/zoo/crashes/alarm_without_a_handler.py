"""A helper of one rank sets an alarm for a download and does not clear it, which ends the process.

class: crashed, dead
culprit: 2
ranks: 3
collection: eighth
"""

import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def download():
    signal.setitimer(signal.ITIMER_REAL, 1.0)


def main():
    for step in range(40):
        if dist.get_rank() == 2 and step == 3:
            download()
        time.sleep(0.1)
        gradient = torch.randn(16)
        dist.all_reduce(gradient)
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
