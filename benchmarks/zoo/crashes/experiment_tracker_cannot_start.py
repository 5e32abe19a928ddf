"""Rank 0 cannot reach the experiment tracker and gives up after three attempts; the others wait for it.

class: crashed
culprit: 0
ranks: 3
collection: third
"""

import logging
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

logging.basicConfig(level=logging.INFO)
log = logging.getLogger("tracker")


class TrackerError(Exception):
    pass


def connect(attempt):
    raise ConnectionRefusedError(111, "Connection refused")


def start_tracker():
    for attempt in range(3):
        try:
            return connect(attempt)
        except ConnectionRefusedError as error:
            log.warning("tracker: %s (attempt %d of 3)", error, attempt + 1)
            last = error
            time.sleep(0.3)
    raise TrackerError("cannot reach the tracker at http://tracker:5000") from last  # <- culprit


def main():
    if dist.get_rank() == 0:
        start_tracker()
    config = [{"run": 1}] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(config, src=0)
    for _ in range(5):
        dist.all_reduce(torch.ones(2))


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
