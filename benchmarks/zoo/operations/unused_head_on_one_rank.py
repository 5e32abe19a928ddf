"""The batches of one rank have no boxes, so that a head of the model gets no gradient there.

class: crashed, dead, skipped, mismatch
culprit: 1
ranks: 3
pattern: https://github.com/pytorch/pytorch/issues/43259
collection: first, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from workbench import recorders  # recorders


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.classes, self.boxes = nn.Linear(8, 8), nn.Linear(8, 2), nn.Linear(8, 4)

    def forward(self, x, has_boxes):
        features = self.backbone(x)
        loss = self.classes(features).square().mean()
        if has_boxes:
            loss = loss + self.boxes(features).square().mean()
        return loss


def main():
    rank = dist.get_rank()
    model = DDP(Detector())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        loss = model(torch.randn(4, 8), has_boxes=not (rank == 1 and step >= 3))  # <- culprit
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
