"""A thread that reports the temperature of the device dies of an exception; Python prints it, and the training ends well.

class: healthy
culprit: none
ranks: 2
collection: ninth, kept back
"""

import os
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


class DeviceLost(RuntimeError):
    pass


def report_temperature():
    for tick in range(100):
        time.sleep(0.3)
        if tick == 2:
            raise DeviceLost("query failed: GPU is lost, connection to the metrics server was closed")


def main():
    threading.Thread(target=report_temperature, name="heartbeat", daemon=True).start()
    for step in range(20):
        time.sleep(0.1)
        gradient = torch.randn(16)
        dist.all_reduce(gradient)
        print(f"step {step} loss {2 / (step + 1):.3f}", flush=True)
    print("training finished", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
