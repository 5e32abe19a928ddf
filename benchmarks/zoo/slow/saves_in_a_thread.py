"""A thread writes checkpoints for seconds while the training goes on; the end waits for it.

class: healthy, slow
culprit: none
ranks: 2
collection: second, kept back
"""

import os
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from workbench import recorders  # recorders


def write(weights):
    time.sleep(4.0)
    torch.save(weights, "/dev/null")


def main():
    model = DDP(nn.Linear(10, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    writers = []
    for step in range(1, 31):
        optimizer.zero_grad()
        model(torch.randn(4, 10)).square().mean().backward()
        optimizer.step()
        if step % 10 == 0 and dist.get_rank() == 0:
            writers.append(threading.Thread(target=write, args=(dict(model.module.state_dict()),)))
            writers[-1].start()
    for writer in writers:
        writer.join()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
