"""One rank catches that the memory ran out for a long sequence, frees its cache and takes the next batch.

class: skipped, mismatch
culprit: 1
ranks: 3
collection: third
"""

import logging
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from workbench import recorders  # recorders

logging.basicConfig(format="%(asctime)s | %(levelname)s | %(name)s | %(message)s", level=logging.INFO)
logger = logging.getLogger("trainer")


def lengths(rank):
    return [16] * 5 + [1 << 44 if rank == 1 else 16] + [16] * 6


def train_step(model, optimizer, length):
    sample = torch.zeros(length // 16, 16)
    loss = model(sample).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def main():
    model = DDP(nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, length in enumerate(lengths(dist.get_rank())):
        try:
            loss = train_step(model, optimizer, length)  # <- culprit
        except RuntimeError as error:
            if "memory" not in str(error):
                raise
            logger.warning("ran out of memory with a sequence of %d, skipping the batch: %s", length, error)
            optimizer.zero_grad()
            continue
        logger.info("step %d loss %.3f", step, loss)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
