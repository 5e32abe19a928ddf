"""One rank repeats a read for some seconds, then has its data and goes on.

class: healthy, slow
culprit: none | 1
ranks: 3
collection: first, kept back
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def read(attempt):
    if attempt < 11:
        raise OSError("stale file handle")
    return torch.ones(4)


def read_with_retries():
    for attempt in range(20):
        try:
            return read(attempt)
        except OSError as error:
            print("retry", attempt, error, flush=True)
            time.sleep(0.5)
    raise OSError("gave up")


def main():
    for step in range(8):
        data = read_with_retries() if dist.get_rank() == 1 and step == 3 else torch.ones(4)
        dist.all_reduce(data)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
