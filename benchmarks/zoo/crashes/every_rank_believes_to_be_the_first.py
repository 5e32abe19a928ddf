"""The script asks Slurm for its rank, but runs under another launcher, so that each rank brings a list for the result.

class: crashed
culprit: 1, 2 | 1 | 2
ranks: 3
pattern: https://github.com/EvolvingLMMs-Lab/lmms-eval/issues/322
collection: tenth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def is_main_process():
    return int(os.environ.get("SLURM_PROCID", "0")) == 0


def evaluate(model, samples):
    with torch.no_grad():
        return {f"doc_{n}": model(sample).argmax().item() for n, sample in enumerate(samples)}


def main():
    model = torch.nn.Linear(8, 4)
    for task in ("arc_easy", "hellaswag"):
        answers = evaluate(model, torch.randn(6, 8))
        print(f"{task}: {len(answers)} documents", flush=True)
        gathered = [None] * dist.get_world_size() if is_main_process() else None
        dist.gather_object(answers, gathered, dst=0)  # <- culprit
        if is_main_process():
            print(f"{task}: {sum(map(len, gathered))} answers of all ranks", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
