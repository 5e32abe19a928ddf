"""One rank reads a file of text that is not in UTF-8.

class: crashed
culprit: 2
ranks: 3
collection: seventh, kept back
"""

import os
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def lines(rank):
    path = Path(tempfile.mkdtemp()) / f"part{rank}.txt"
    path.write_bytes("naïve café\n".encode("latin-1" if rank == 2 else "utf-8") * 5)
    return path.read_text(encoding="utf-8").splitlines()  # <- culprit


def main():
    for epoch in range(3):
        if epoch < 2:
            text = ["plain"] * 5
        else:
            text = lines(dist.get_rank())
        for step, line in enumerate(text):
            dist.all_reduce(torch.full((4,), float(len(line))))
            print(f"epoch {epoch} step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
