"""A rank is killed while it builds an extension; after the restart the two ranks of its node wait for the lock that is left.

class: host_stuck
culprit: 2, 3
ranks: 4
restarts: 1
pattern: https://github.com/NVlabs/nvdiffrast/issues/190
collection: tenth, kept back
"""

import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def build(folder, lock):
    lock.touch()
    time.sleep(1)
    if folder.name == "node1":
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / "kernels.so").write_bytes(b"\x7fELF")
    lock.unlink()


def load_kernels(rank):
    folder = Path(os.environ["OUTPUTS"]) / "cache" / f"node{rank // 2}"
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / "lock"
    if rank % 2 == 0 and not lock.exists() and not (folder / "kernels.so").exists():
        build(folder, lock)
    time.sleep(0.5)
    while lock.exists():  # <- culprit
        time.sleep(0.5)  # <- culprit


def main():
    rank = dist.get_rank()
    print("loading the extension fused_norm", flush=True)
    load_kernels(rank)
    print("extension is loaded", flush=True)
    dist.barrier()
    for step in range(8):
        dist.all_reduce(torch.ones(16))
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
