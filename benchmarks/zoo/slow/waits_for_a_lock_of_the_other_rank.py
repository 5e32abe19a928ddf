"""The main process prepares data under a file lock; the others try to get the lock again and again until it is done.

class: healthy, slow, straggler
culprit: none | 0
ranks: 3
collection: fifth, kept back
"""

import fcntl
import os
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def lock(path):
    handle = path.open("w")
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            print(f"could not acquire {path}: {error}; trying again in 0.5 s", flush=True)
            time.sleep(0.5)
        else:
            return handle


def main():
    path = Path(tempfile.gettempdir()) / f"prepare_{os.environ['MASTER_PORT']}.lock"
    if dist.get_rank():
        time.sleep(0.5)
    with lock(path):
        time.sleep(4 if dist.get_rank() == 0 else 0.1)
    for step in range(10):
        value = torch.ones(4)
        dist.all_reduce(value)
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=20))
recorders.start(os.environ["OUTPUTS"], timeout_s=20)  # recorders
main()
dist.destroy_process_group()
