"""The main process opens a named pipe for reading, to which nobody writes.

class: host_stuck
culprit: 0
ranks: 3
collection: sixth, kept back
"""

import os
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def read_command():
    path = Path(tempfile.mkdtemp()) / "commands"
    os.mkfifo(path)
    return path.read_text()  # <- culprit


def main():
    for step in range(8):
        if step == 5 and dist.get_rank() == 0:
            print(f"command: {read_command()}", flush=True)
        value = torch.ones(16)
        dist.all_reduce(value)
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
