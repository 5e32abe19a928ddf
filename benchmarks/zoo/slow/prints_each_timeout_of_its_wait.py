"""Rank 0 prepares the data for some seconds; the others poll the store for its key and print each timeout of a second.

class: healthy, slow, straggler
culprit: none | 0
ranks: 3
collection: ninth, kept back
"""

import logging
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def wait_for_data(store):
    for attempt in range(20):
        try:
            return store.wait(["data_is_ready"], timedelta(seconds=1))
        except RuntimeError:
            logging.exception("attempt %d of 20", attempt + 1)
    raise SystemExit("no data")


def main():
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        time.sleep(4)
        store.set("data_is_ready", "1")
    else:
        wait_for_data(store)
    for step in range(10):
        dist.all_reduce(torch.ones(16))
        print(f"step {step} loss {2 / (step + 1):.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
