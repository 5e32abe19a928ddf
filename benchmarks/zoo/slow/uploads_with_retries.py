"""The main process uploads each checkpoint, fails twice, prints how, waits and tries again while the others wait.

class: healthy, slow, straggler
culprit: none | 0
ranks: 3
collection: fourth
"""

import logging
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

logging.basicConfig(format="%(asctime)s [%(levelname)s] %(message)s", level=logging.INFO)
TRIES = {"count": 0}


def put(step):
    TRIES["count"] += 1
    if TRIES["count"] % 3:
        raise ConnectionResetError(104, "Connection reset by peer")


def upload(step):
    for attempt in range(5):
        try:
            put(step)
        except OSError as error:
            logging.error("upload of step %d failed: %r", step, error, exc_info=True)
            time.sleep(0.7)
        else:
            logging.info("uploaded checkpoint of step %d after %d failures", step, attempt)
            return


def main():
    for step in range(16):
        dist.all_reduce(torch.ones(4))
        if dist.get_rank() == 0:
            logging.info("step %d, loss %.3f", step, 1 / (step + 1))
        if step % 5 == 4:
            if dist.get_rank() == 0:
                upload(step)
            dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
