"""A trainer accumulates gradients, keeps averaged weights, and stops early because rank 0 tells all ranks to.

class: healthy
culprit: none
ranks: 3
pattern: https://github.com/ultralytics/yolov5/pull/8345
collection: tenth, kept back
"""

import contextlib
import copy
import logging
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workbench import recorders  # recorders

logger = logging.getLogger("trainer")


class EarlyStopping:
    def __init__(self, patience):
        self.best, self.bad, self.patience = float("inf"), 0, patience

    def __call__(self, metric):
        self.bad = 0 if metric < self.best else self.bad + 1
        self.best = min(self.best, metric)
        return self.bad >= self.patience


class Trainer:
    accumulate = 4

    def __init__(self):
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1)))
        self.ema = copy.deepcopy(self.model.module)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.stopping = EarlyStopping(patience=2)

    def train_epoch(self):
        self.model.train()
        for batch in range(12):
            is_last = batch % self.accumulate == self.accumulate - 1
            with contextlib.nullcontext() if is_last else self.model.no_sync():
                (self.model(torch.randn(8, 6)).square().mean() / self.accumulate).backward()
            if is_last:
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.update_average()

    @torch.no_grad()
    def update_average(self, decay=0.9):
        for average, parameter in zip(self.ema.parameters(), self.model.module.parameters(), strict=True):
            average.lerp_(parameter, 1 - decay)

    @torch.no_grad()
    def evaluate(self, epoch):
        losses = {f"sample_{n}": self.ema(torch.randn(6)).square().item() for n in range(5 + dist.get_rank())}
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, losses)
        values = [value for part in parts for value in part.values()]
        return sum(values) / len(values) if epoch < 3 else 10.0 + epoch

    def fit(self):
        for epoch in range(20):
            self.train_epoch()
            loss = self.evaluate(epoch)
            decision = [self.stopping(loss) if dist.get_rank() == 0 else None]
            dist.broadcast_object_list(decision, src=0)
            logger.info("epoch %d val_loss %.3f", epoch, loss)
            if decision[0]:
                logger.warning("no improvement for %d epochs, stopping early", self.stopping.patience)
                break


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
logging.basicConfig(level=logging.INFO, format=f"[rank {dist.get_rank()}] %(levelname)s %(message)s")
Trainer().fit()
dist.destroy_process_group()
