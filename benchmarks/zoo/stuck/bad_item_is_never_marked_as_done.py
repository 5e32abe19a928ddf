"""A thread of rank 0 skips an empty plot without marking it as done, and the end of the epoch waits for all marks.

class: host_stuck
culprit: 0
ranks: 3
collection: tenth, kept back
"""

import os
import queue
import threading
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


class Uploader(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True, name="uploader")
        self.plots = queue.Queue()
        self.start()

    def run(self):
        while True:
            name, pixels = self.plots.get()
            if not pixels:
                print(f"{name} is empty, skipped", flush=True)
                continue  # <- culprit
            self.plots.task_done()

    def flush(self):
        self.plots.join()  # <- culprit


def main():
    rank = dist.get_rank()
    uploader = Uploader() if rank == 0 else None
    for epoch in range(4):
        for step in range(5):
            loss = torch.rand(1)
            dist.all_reduce(loss)
            if uploader:
                uploader.plots.put((f"attention_{epoch}_{step}.png", b"" if (epoch, step) == (2, 3) else b"\x89PNG"))
        if uploader:
            uploader.flush()  # <- culprit
        print(f"epoch {epoch} loss {loss.item() / dist.get_world_size():.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
