"""A batch fails on one rank; the handler around the whole training logs a warning, and the process ends with code 0.

class: crashed, dead, skipped
culprit: 1
ranks: 3
collection: fifth
"""

import logging
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def train(rank):
    labels = {"cat": 0, "dog": 1}
    for step in range(12):
        label = "horse" if rank == 1 and step == 6 else "dog"
        value = torch.tensor([float(labels[label])])  # <- culprit
        dist.all_reduce(value)
        logging.info("step %d mean label %.2f", step, value.item() / dist.get_world_size())


def main():
    try:
        train(dist.get_rank())
    except Exception as error:
        logging.warning("training stopped early: %r", error)
    logging.info("writing the last checkpoint")


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
