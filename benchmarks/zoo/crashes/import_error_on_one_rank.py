"""One node lacks a package that is imported when the first evaluation begins.

class: crashed, dead
culprit: 1
ranks: 3
collection: second
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def evaluate():
    if dist.get_rank() == 1:
        import rouge_metric_of_another_image  # <- culprit

        return rouge_metric_of_another_image.score()
    return 0.5


def main():
    for step in range(1, 7):
        dist.all_reduce(torch.randn(10))
        if step == 4:
            score = torch.tensor([evaluate()])
            dist.all_reduce(score)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
