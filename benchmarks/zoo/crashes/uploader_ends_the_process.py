"""A thread that uploads metrics fails, prints its exception and ends the whole process.

class: crashed, dead
culprit: 1
ranks: 3
collection: second
"""

import os
import threading
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def post(metrics):
    if metrics["rank"] == 1:
        raise PermissionError("403: the token has expired")  # <- culprit


def upload(rank):
    time.sleep(1.5)
    try:
        post({"rank": rank})
    except PermissionError:
        traceback.print_exc()
        os._exit(3)


def main():
    threading.Thread(target=upload, args=(dist.get_rank(),), daemon=True).start()
    for _ in range(60):
        dist.all_reduce(torch.randn(10))
        time.sleep(0.05)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
