"""A command that reads the version of the sources fails, prints its error and is ignored.

class: healthy
culprit: none
ranks: 2
collection: second
"""

import os
import subprocess
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def version():
    command = [sys.executable, "-c", "raise RuntimeError('fatal: not a git repository')"]
    done = subprocess.run(command, check=False, text=True, stdout=subprocess.PIPE)
    return done.stdout or "unknown"


def main():
    print("version", version(), flush=True)
    for step in range(15):
        loss = torch.rand(1)
        dist.all_reduce(loss)
        print(f"step {step} loss {loss.item():.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
