"""The script logs the exception that ends it and exits with 1, as command-line tools do.

class: crashed
culprit: 1
ranks: 3
collection: fourth
"""

import logging
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
log = logging.getLogger("train")


def train():
    rank = dist.get_rank()
    for step in range(20):
        shard = {"tokens": torch.ones(4)} if not (rank == 1 and step == 8) else {"input_ids": torch.ones(4)}
        tokens = shard["tokens"]  # <- culprit
        dist.all_reduce(tokens)
        log.info("step %d loss %.3f", step, 3 / (step + 1))


def main():
    try:
        train()
    except Exception:
        log.exception("training failed")
        sys.exit(1)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
