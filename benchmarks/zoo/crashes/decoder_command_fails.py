"""One rank calls a command-line decoder, which ends with an error; the script does not catch it.

class: crashed
culprit: 1
ranks: 3
collection: seventh, kept back
"""

import os
import subprocess
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def decode(clip, *, broken):
    program = "import sys; sys.exit('clip: moov atom not found')" if broken else "print('ok')"
    subprocess.run([sys.executable, "-c", program], check=True)  # <- culprit
    return torch.full((4,), float(clip))


def main():
    rank = dist.get_rank()
    for step in range(6):
        frames = decode(step, broken=rank == 1 and step == 3)
        dist.all_reduce(frames)
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
