"""A package is not installed; every rank fails before the process group is made.

class: crashed, dead
culprit: any
ranks: 2
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from a_tokenizer_that_nobody_installed import Tokenizer  # <- culprit

from workbench import recorders  # recorders

dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
tokens = Tokenizer().encode("a text")
dist.all_reduce(torch.tensor(tokens))
dist.destroy_process_group()
