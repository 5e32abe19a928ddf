"""The newest checkpoint is damaged; each rank prints why, and all take the one before.

class: healthy
culprit: none
ranks: 3
collection: seventh, kept back
"""

import io
import os
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def checkpoint(*, damaged):
    buffer = io.BytesIO()
    torch.save({"weights": torch.ones(64)}, buffer)
    return buffer.getvalue()[: 300 if damaged else None]


def resume():
    for number in (900, 800):
        try:
            return number, torch.load(io.BytesIO(checkpoint(damaged=number == 900)))
        except Exception:
            traceback.print_exc()
            print(f"checkpoint {number} cannot be read", flush=True)
    raise SystemExit("no checkpoint")


def main():
    start, state = resume()
    for step in range(start, start + 10):
        dist.all_reduce(state["weights"])
        print(f"step {step}", flush=True)
    print(f"finished at step {start + 10}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
