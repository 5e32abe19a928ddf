"""The main process downloads the data for most of the timeout, and the others wait for a key in the store.

class: healthy, slow, straggler
culprit: none | 0
ranks: 3
collection: seventh
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def prepare():
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        for part in range(5):
            print(f"downloading part {part}", flush=True)
            time.sleep(1)
        store.set("data", "ready")
    else:
        store.wait(["data"])


def main():
    prepare()
    for step in range(10):
        dist.all_reduce(torch.ones(4))
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
