"""One rank waits for the end of a command without reading its output, and the command waits for its pipe.

class: host_stuck
culprit: 1
ranks: 3
collection: fifth
"""

import os
import subprocess
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def convert(files):
    command = [sys.executable, "-S", "-c", f"print('converted\\n' * {files})"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    process.wait()  # <- culprit
    return process.returncode


def main():
    rank = dist.get_rank()
    for step in range(8):
        code = convert(40_000 if rank == 1 and step == 5 else 10)
        value = torch.tensor([float(code)])
        dist.all_reduce(value)
        print(f"step {step} ok", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
