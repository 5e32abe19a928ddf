"""The port in the settings belongs to another job of the same host.

class: startup, crashed
culprit: any
ranks: 2
collection: second
"""

import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def another_job():
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen()
    return server


os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
if os.environ["RANK"] == "0":
    other = another_job()
    os.environ["MASTER_PORT"] = str(other.getsockname()[1])
dist.init_process_group("gloo", timeout=timedelta(seconds=8))  # <- culprit
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
