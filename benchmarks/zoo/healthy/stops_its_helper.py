"""Each rank starts a helper process and terminates it at the end, and prints with which signal.

class: healthy
culprit: none
ranks: 2
collection: sixth, kept back
"""

import os
import subprocess
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    helper = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    for step in range(10):
        value = torch.ones(16)
        dist.all_reduce(value)
        print(f"step {step} loss {1 / (step + 1):.3f}", flush=True)
    helper.terminate()
    code = helper.wait()
    print(f"helper {helper.pid} was killed by signal {-code} (SIGTERM), exit code {code}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
