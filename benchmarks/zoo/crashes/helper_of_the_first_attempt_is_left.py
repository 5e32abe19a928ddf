"""A rank fails and all are restarted, but the server that rank 0 had started still holds the port.

class: crashed, startup
culprit: 0
ranks: 3
restarts: 1
collection: tenth, kept back
"""

import os
import subprocess
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

PORT = 20000 + os.getppid() % 10000


def start_metrics_server():
    command = ["timeout", "45", sys.executable, "-m", "http.server", str(PORT), "--bind", "127.0.0.1"]
    server = subprocess.Popen(command, cwd=os.environ["OUTPUTS"], start_new_session=True)
    time.sleep(2)
    if server.poll() is not None:
        raise RuntimeError(f"metrics server ended with exit code {server.returncode}")  # <- culprit
    print(f"metrics are served at port {PORT}", flush=True)
    return server


def main():
    rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    server = start_metrics_server() if rank == 0 else None  # <- culprit
    for step in range(14):
        dist.all_reduce(torch.randn(20))
        print(f"attempt {attempt} step {step}", flush=True)
        if rank == 1 and attempt == 0 and step == 7:
            raise ConnectionResetError(104, "Connection reset by peer", "data-server:8080")
    if server:
        server.terminate()


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
