"""The main process prints the norm of a sharded parameter now and then, for which all ranks have to gather it.

class: skipped, mismatch
culprit: 0
ranks: 3
collection: ninth, kept back
"""

import logging
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from workbench import recorders  # recorders

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
logger = logging.getLogger("train")


def main():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    weight = distribute_tensor(torch.ones(12, 8), mesh, [Shard(0)])
    for step in range(9):
        gradient = torch.randn(4, 8)
        dist.all_reduce(gradient)
        with torch.no_grad():
            weight.to_local().sub_(0.01 * gradient)
        if step % 5 == 4 and dist.get_rank() == 0:
            logger.info("step %d weight norm %.4f", step, weight.full_tensor().norm())  # <- culprit
        else:
            logger.info("step %d", step)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
