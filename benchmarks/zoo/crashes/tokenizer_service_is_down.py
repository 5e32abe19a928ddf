"""The service that tokenizes for one rank refuses the connection, and nobody catches the error.

class: crashed
culprit: 2
ranks: 3
collection: sixth, kept back
"""

import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def tokenize(text):
    with socket.create_connection(("127.0.0.1", 9), timeout=1) as connection:  # <- culprit
        connection.sendall(text.encode())
        return connection.recv(100)


def main():
    for step in range(8):
        if step == 4 and dist.get_rank() == 2:
            tokenize("a sample")
        value = torch.ones(16)
        dist.all_reduce(value)
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
