"""One rank gets a warning signal, saves its state and exits with code 0, so that no launcher reacts.

class: dead, early_exit
culprit: 1
ranks: 3
collection: fourth, kept back
"""

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def on_notice(number, frame):
    print(f"received signal {number}, saving a checkpoint before preemption", flush=True)
    sys.exit(0)


def main():
    signal.signal(signal.SIGUSR2, on_notice)
    for step in range(40):
        if dist.get_rank() == 1 and step == 12:
            os.kill(os.getpid(), signal.SIGUSR2)
        loss = torch.ones(4)
        dist.all_reduce(loss)
        print(f"[{step:>4}/40] loss: {1 / (step + 1):.4f}", flush=True)
        time.sleep(0.02)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
