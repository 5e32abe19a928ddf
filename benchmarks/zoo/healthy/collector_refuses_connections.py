"""The collector of metrics refuses every connection; each rank logs the traceback and trains on.

class: healthy
culprit: none
ranks: 3
collection: fifth
"""

import logging
import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

logging.basicConfig(format="%(levelname)s:%(name)s: %(message)s", level=logging.INFO)


def push(value):
    with socket.create_connection(("127.0.0.1", 9), timeout=1) as connection:
        connection.sendall(str(value).encode())


def main():
    for step in range(10):
        value = torch.ones(4)
        dist.all_reduce(value)
        try:
            push(value.sum().item())
        except OSError:
            logging.exception("cannot push the metrics of step %d: connection closed by peer?", step)
        logging.info("step %d value %.1f", step, value.sum().item())


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
