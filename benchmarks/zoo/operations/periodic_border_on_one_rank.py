"""One rank was started with periodic borders and expects a message from the other end of the domain, which sends none.

class: unmatched_p2p, mismatch, skipped
culprit: 0
ranks: 3
collection: seventh
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def exchange(values, *, periodic):
    rank, world = dist.get_rank(), dist.get_world_size()
    halo = torch.zeros(4)
    requests = []
    if rank + 1 < world:
        requests.append(dist.isend(values, dst=rank + 1))
    if rank > 0 or periodic:
        requests.append(dist.irecv(halo, src=(rank - 1) % world))
    for request in requests:
        request.wait()  # <- culprit
    return halo


def main():
    for step in range(8):
        values = torch.randn(4)
        exchange(values, periodic=dist.get_rank() == 0 and step >= 5)
        dist.all_reduce(values)
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
