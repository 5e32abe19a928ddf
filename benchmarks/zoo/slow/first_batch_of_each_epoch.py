"""The first batch of every epoch takes seconds on all ranks, as the workers are started anew.

class: healthy, slow
culprit: none
ranks: 2
collection: third
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from workbench import recorders  # recorders


def loader():
    time.sleep(2.5)
    for _ in range(6):
        yield torch.randn(8, 16)


def main():
    model = DDP(nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(3):
        begin = time.time()
        for step, batch in enumerate(loader()):
            waited = time.time() - begin
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if dist.get_rank() == 0:
                print(f"Epoch: [{epoch}][{step}/6]  Data {waited:.3f}  Loss {loss.item():.4e}", flush=True)
            begin = time.time()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
