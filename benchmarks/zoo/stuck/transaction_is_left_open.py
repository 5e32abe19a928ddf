"""Rank 0 leaves a transaction open and waits for the others; another rank waits for the database.

class: host_stuck
culprit: 1 | 0, 1
ranks: 3
collection: tenth, kept back
logs: collective_timeout
"""

import os
import sqlite3
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def open_database(rank):
    database = sqlite3.connect(Path(os.environ["OUTPUTS"]) / "metrics.db", timeout=120)
    if rank == 0:
        database.execute("create table if not exists losses (rank int, step int, loss real)")
        database.commit()
    dist.barrier()
    return database


def save(database, rank, step, loss):
    database.execute("insert into losses values (?, ?, ?)", (rank, step, loss))  # <- culprit
    if step != 6 or rank != 0:
        database.commit()


def main():
    rank = dist.get_rank()
    database = open_database(rank)
    for step in range(12):
        loss = torch.rand(1)
        if rank == 0:
            save(database, rank, step, loss.item())
        dist.all_reduce(loss)
        if rank == 1 and step % 3 == 0:
            save(database, rank, step, loss.item())  # <- culprit
        dist.barrier()
        print(f"step {step} loss {loss.item() / 3:.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
