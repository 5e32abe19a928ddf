"""A signal reaches one rank; all agree to stop after the step, save, and leave with exit code 0.

class: healthy
culprit: none
ranks: 3
collection: fourth
"""

import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

STOP = {"asked": False}


def on_signal(number, frame):
    print(f"Received signal {signal.Signals(number).name}: stopping after this step", flush=True)
    STOP["asked"] = True


def main():
    signal.signal(signal.SIGUSR1, on_signal)
    for step in range(60):
        if dist.get_rank() == 2 and step == 15:
            os.kill(os.getpid(), signal.SIGUSR1)
        dist.all_reduce(torch.ones(4))
        stop = torch.tensor([float(STOP["asked"])])
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        print(f"step {step} loss {1 / (step + 1):.3f}", flush=True)
        if stop.item():
            print(f"interrupted at step {step}; checkpoint saved, exiting", flush=True)
            return
        time.sleep(0.02)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
