"""A worker process of one rank is killed while it holds a lock, for which the training loop waits.

class: host_stuck
culprit: 2
ranks: 3
collection: fifth, kept back
"""

import multiprocessing
import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def work(lock):
    lock.acquire()
    os.kill(os.getpid(), signal.SIGKILL)


def main():
    context = multiprocessing.get_context("fork")
    lock = context.Lock()
    for step in range(8):
        if dist.get_rank() == 2 and step == 4:
            worker = context.Process(target=work, args=(lock,))
            worker.start()
            worker.join()
        with lock:  # <- culprit
            value = torch.ones(4)
        dist.all_reduce(value)
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
