"""A helper process that judges samples is killed once; the main process prints its signal and starts another.

class: healthy
culprit: none
ranks: 2
collection: eighth, kept back
"""

import os
import subprocess
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def start_judge():
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def main():
    judge = start_judge() if dist.get_rank() == 0 else None
    for step in range(8):
        gradient = torch.randn(16)
        dist.all_reduce(gradient)
        if judge and step == 3:
            judge.kill()
            judge.wait()
            print(f"judge died with exit code {judge.returncode} (SIGKILL), starting it again", flush=True)
            judge = start_judge()
        print(f"step {step} loss {2 / (step + 2):.3f}", flush=True)
    if judge:
        judge.terminate()
        judge.wait()
    print("training finished", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
