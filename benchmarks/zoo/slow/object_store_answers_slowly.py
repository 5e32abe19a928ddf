"""One rank's requests to an object store fail with errors and backtraces in its log until the store answers.

class: healthy, slow
culprit: none | 1
ranks: 3
collection: third, kept back
"""

import os
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def request(attempt):
    if attempt < 5:
        raise TimeoutError("The read operation timed out")
    return torch.ones(4)


def download():
    for attempt in range(8):
        try:
            return request(attempt)
        except TimeoutError:
            traceback.print_exc()
            print(f"ERROR: download failed, attempt {attempt + 1}/8, retrying in 1 s", flush=True)
            time.sleep(1)
    raise RuntimeError("download failed")


def main():
    rank = dist.get_rank()
    for step in range(8):
        batch = download() if rank == 1 and step == 3 else torch.ones(4)
        dist.all_reduce(batch)
        print(f"rank{rank}: step={step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=15))
recorders.start(os.environ["OUTPUTS"], timeout_s=15)  # recorders
main()
dist.destroy_process_group()
