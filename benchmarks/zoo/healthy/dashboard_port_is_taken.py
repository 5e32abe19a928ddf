"""The port of the dashboard is in use; the main process prints that and takes the next one.

class: healthy
culprit: none
ranks: 2
collection: seventh, kept back
"""

import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def serve(first):
    for port in range(first, first + 20):
        server = socket.socket()
        try:
            server.bind(("127.0.0.1", port))
        except OSError as error:
            print(f"dashboard: cannot listen on port {port}: {error}", flush=True)
            continue
        print(f"dashboard: http://127.0.0.1:{port}", flush=True)
        return server
    return None


def main():
    if dist.get_rank() == 0:
        taken = socket.create_server(("127.0.0.1", 0))
        serve(taken.getsockname()[1])
    for step in range(10):
        dist.all_reduce(torch.ones(4))
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
