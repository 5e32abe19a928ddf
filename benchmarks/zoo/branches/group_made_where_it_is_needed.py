"""A rank that takes no part in the evaluation does not make its process group, for which the others wait.

class: skipped, mismatch
culprit: 3
ranks: 4
pattern: https://github.com/pytorch/pytorch/issues/134314
collection: second
logs: mismatch
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

EVALUATORS = [0, 1, 2]


def evaluation_group():
    if dist.get_rank() not in EVALUATORS:
        return None
    return dist.new_group(EVALUATORS, timeout=timedelta(seconds=10))  # <- culprit


def main():
    weights = torch.randn(128)
    for _ in range(4):
        dist.all_reduce(weights)
    group = evaluation_group()
    if group is not None:
        dist.all_reduce(torch.ones(1), group=group)
    savers = dist.new_group([0, 3], timeout=timedelta(seconds=10))  # <- culprit
    if dist.get_rank() in (0, 3):
        dist.all_reduce(weights, group=savers)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
