"""One rank reads another port from its own settings, so that the process group is never complete.

class: crashed, startup
culprit: any
ranks: 3
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

if os.environ["RANK"] == "2":
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) - 1)
dist.init_process_group("gloo", timeout=timedelta(seconds=6))  # <- culprit
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
