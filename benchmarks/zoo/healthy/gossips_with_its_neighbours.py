"""Ranks train alone and mix their weights with two neighbours in a ring; all of them write to one log file.

class: healthy
culprit: none
ranks: 4
collection: tenth, kept back
"""

import logging
import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def make_logger(rank):
    logger = logging.getLogger("gossip")
    handler = logging.FileHandler(Path(os.environ["OUTPUTS"]) / "train.log")
    handler.setFormatter(logging.Formatter(f"%(asctime)s [rank {rank}] %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return logger


def mix(weights, rank, size):
    left, right = (rank - 1) % size, (rank + 1) % size
    from_left, from_right = torch.empty_like(weights), torch.empty_like(weights)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, weights, left),
            dist.P2POp(dist.isend, weights, right),
            dist.P2POp(dist.irecv, from_left, left),
            dist.P2POp(dist.irecv, from_right, right),
        ]
    )
    for work in works:
        work.wait()
    return (weights + from_left + from_right) / 3


def main():
    rank, size = dist.get_rank(), dist.get_world_size()
    logger = make_logger(rank)
    weights = torch.full((50,), float(rank))
    for step in range(40):
        weights -= 0.01 * torch.randn(50)
        if step % 4 == 3:
            weights = mix(weights, rank, size)
            logger.info("step %d mean %.3f", step, weights.mean())
    if (spread := weights.std().item()) > 0.02:
        logger.warning("members disagree: deviation %.3f", spread)
    logger.info("done")


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
