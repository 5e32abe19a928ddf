"""The rank that gets the lock first builds the kernels for some seconds, and the others wait until the lock is gone.

class: healthy, slow, straggler
culprit: any
ranks: 3
pattern: https://github.com/NVlabs/nvdiffrast/issues/67
collection: tenth, kept back
"""

import os
import subprocess
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def load_kernels(folder):
    folder.mkdir(parents=True, exist_ok=True)
    library, lock = folder / "kernels.so", folder / "lock"
    try:
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        print(f"waiting for another process that builds the extension: {lock} exists", flush=True)
        while lock.exists():
            time.sleep(0.1)
        return library.read_bytes()
    try:
        print("building the extension with ninja, 4 jobs", flush=True)
        subprocess.run(["sleep", "4"], check=True)
        library.write_bytes(b"\x7fELF")
    finally:
        lock.unlink()
    return library.read_bytes()


def main():
    load_kernels(Path(os.environ["OUTPUTS"]) / "torch_extensions" / "fused_norm")
    for step in range(12):
        gradient = torch.randn(64)
        dist.all_reduce(gradient)
        print(f"step {step} norm {gradient.norm().item():.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
