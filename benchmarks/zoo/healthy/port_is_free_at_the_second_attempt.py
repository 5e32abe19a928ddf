"""The port of the main process is taken in the first attempt; torchrun starts all ranks again, and they train.

class: healthy
culprit: none
ranks: 2
restarts: 1
collection: eighth
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0" and dist.get_rank() == 0:
        raise OSError(98, "Address already in use")
    for step in range(8):
        gradient = torch.randn(16)
        dist.all_reduce(gradient)
        print(f"step {step} loss {2 / (step + 2):.3f}", flush=True)
    print("training finished", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
