"""Rank 0 evaluates in a child process and joins it before it reads the result, which is larger than the pipe.

class: host_stuck
culprit: 0
ranks: 3
collection: tenth, kept back
"""

import multiprocessing
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def evaluate(results, documents):
    results.put([f"document {n}: answer {n % 5}" for n in range(documents)])


def run_evaluation(documents):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=evaluate, args=(results, documents), daemon=True)
    child.start()
    child.join()  # <- culprit
    return results.get()


def main():
    for step in range(1, 13):
        gradient = torch.randn(32)
        dist.all_reduce(gradient)
        print(f"step {step} norm {gradient.norm().item():.3f}", flush=True)
        if step % 4 == 0 and dist.get_rank() == 0:
            answers = run_evaluation(documents=100 if step == 4 else 20_000)
            print(f"evaluated {len(answers)} documents", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
