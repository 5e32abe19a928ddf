"""Each rank averages the metrics that it has; only one rank saw a well-formed answer and has one metric more.

class: mismatch, skipped
culprit: 0
ranks: 3
pattern: https://github.com/huggingface/trl/issues/7310
collection: second
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def collect(step):
    metrics = {"reward": [0.1 * step], "length": [17.0]}
    if dist.get_rank() == 0 and step == 4:
        metrics["format_accuracy"] = [1.0]
    return metrics


def log(metrics):
    averages = {}
    for name in sorted(metrics):
        values = torch.tensor(metrics[name]).mean().reshape(1)
        gathered = [torch.empty(1) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, values)  # <- culprit
        averages[name] = torch.cat(gathered).mean().item()
    return averages


def main():
    gradients = torch.randn(64)
    for step in range(1, 8):
        dist.all_reduce(gradients)
        averages = log(collect(step))
        if dist.get_rank() == 0:
            print(step, averages, flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
