"""Each trial of a search makes the process group anew and destroys it at its end; a diverging trial is caught by all ranks.

class: healthy
culprit: none
ranks: 2
collection: ninth, kept back
"""

import os
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def train(rate):
    weight = torch.tensor([1.0])
    for step in range(12):
        gradient = 2 * weight
        dist.all_reduce(gradient)
        weight = weight - rate * gradient
        if weight.abs() > 1e3:
            raise ValueError(f"weight diverged at step {step}")
        print(f"rate {rate} step {step} weight {weight.item():.3f}", flush=True)
    return weight.abs().item()


def join(store, trial):
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    names = dist.PrefixStore(f"trial{trial}", store)
    dist.init_process_group("gloo", store=names, rank=rank, world_size=ranks, timeout=timedelta(seconds=8))


def main():
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(host, port, is_master=False)
    join(store, 0)
    recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
    results = {}
    for trial, rate in enumerate((0.01, 3.0, 0.1)):
        if trial:
            join(store, trial)
        try:
            results[rate] = train(rate)
        except ValueError:
            traceback.print_exc()
            print(f"trial {trial} failed, taking the next", flush=True)
        dist.barrier()
        dist.destroy_process_group()
    print(f"best rate: {min(results, key=results.get)}", flush=True)


main()
