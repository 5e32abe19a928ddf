"""The file system is full when the main process saves; it removes old checkpoints and saves again.

class: healthy
culprit: none
ranks: 2
collection: seventh
"""

import logging
import os
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
folder = Path(tempfile.mkdtemp())


def save(step):
    try:
        with open("/dev/full" if step == 6 else folder / f"{step}.pt", "wb") as file:
            file.write(b"0" * 9000)
    except OSError:
        logging.exception("checkpoint of step %d: no space, removing the oldest one", step)
        min(folder.glob("*.pt")).unlink()
        (folder / f"{step}.pt").write_bytes(b"0" * 9000)


def main():
    for step in range(12):
        dist.all_reduce(torch.ones(4))
        if step % 3 == 0 and dist.get_rank() == 0:
            save(step)
        print(f"step {step} loss {2 / (step + 2):.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
