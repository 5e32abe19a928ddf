"""The main process writes its metrics to the input of a command, which has ended in the meantime.

class: crashed
culprit: 0
ranks: 3
collection: ninth, kept back
"""

import json
import os
import subprocess
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    command = None
    if dist.get_rank() == 0:
        command = subprocess.Popen(["head", "-n", "3"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    for step in range(12):
        loss = torch.rand(1)
        dist.all_reduce(loss)
        if command:
            command.stdin.write(json.dumps({"step": step, "loss": loss.item()}) + "\n")
            command.stdin.flush()  # <- culprit
            if step == 5:
                command.wait()
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
