"""The degrees of data and tensor parallelism of the settings do not multiply to the number of ranks.

class: crashed, startup
culprit: any
ranks: 4
collection: fifth, kept back
"""

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


@dataclass
class ParallelDims:
    dp: int
    tp: int
    world: int

    def check(self):
        product = self.dp * self.tp
        assert product == self.world, f"dp({self.dp}) * tp({self.tp}) != WORLD_SIZE({self.world})"  # <- culprit


def main():
    value = torch.ones(4)
    for step in range(4):
        dist.all_reduce(value)
        print(f"step {step}", flush=True)


ParallelDims(dp=3, tp=2, world=int(os.environ["WORLD_SIZE"])).check()


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
