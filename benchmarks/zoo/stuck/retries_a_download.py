"""One rank retries a download with a growing pause and never gives up.

class: host_stuck, slow
culprit: 2
ranks: 3
collection: first
"""

import logging
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def fetch(rank):
    if rank == 2:
        raise ConnectionError("503 Service Unavailable")
    return torch.ones(3)


def fetch_with_retries(rank):
    pause = 0.5
    while True:
        try:
            return fetch(rank)
        except ConnectionError as error:
            logging.warning("retrying in %.1f s: %s", pause, error)
            time.sleep(pause)  # <- culprit
            pause *= 2


def main():
    dist.all_reduce(torch.ones(1))
    batch = fetch_with_retries(dist.get_rank())
    dist.all_reduce(batch)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
