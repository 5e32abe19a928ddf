"""One rank logs every sample that it cannot decode with the whole chain of exceptions, and takes another one.

class: healthy
culprit: none
ranks: 3
collection: third
"""

import logging
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)


class DecodeError(RuntimeError):
    pass


def decode(data):
    try:
        return float(data)
    except ValueError as error:
        raise DecodeError(f"cannot decode {data!r}") from error


def sample(index, rank):
    data = "corrupt" if rank == 1 and index % 4 == 0 else str(index)
    try:
        return decode(data)
    except DecodeError:
        logging.exception("sample %d is skipped", index)
        return sample(index + 1, rank)


def main():
    rank = dist.get_rank()
    for step in range(12):
        value = torch.tensor([sample(step, rank)])
        dist.all_reduce(value)
        logging.info("step %d value %.2f", step, value.item())
    logging.info("training finished")


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
