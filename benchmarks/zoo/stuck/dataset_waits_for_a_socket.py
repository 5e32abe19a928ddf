"""The data set of one rank reads from a server that accepts the connection and never answers.

class: host_stuck
culprit: 1
ranks: 3
collection: first
"""

import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from workbench import recorders  # recorders


class Remote(Dataset):
    def __init__(self, rank):
        self.rank = rank
        self.server = socket.create_server(("127.0.0.1", 0))

    def __len__(self):
        return 20

    def __getitem__(self, index):
        if self.rank == 1 and index == 9:
            with socket.create_connection(self.server.getsockname()) as connection:
                connection.sendall(b"GET 9\n")
                connection.recv(4096)  # <- culprit
        return torch.randn(3)


def main():
    rank = dist.get_rank()
    for batch in DataLoader(Remote(rank), batch_size=2):
        dist.all_reduce(batch)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
