"""A reader prints the traceback of every file that it cannot read and takes the next one.

class: healthy
culprit: none
ranks: 2
collection: second, kept back
"""

import json
import os
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

FILES = ["[1, 2]", "{broken", "[3, 4]", "", "[5, 6]"]


def read():
    for text in FILES * 4:
        try:
            yield torch.tensor(json.loads(text), dtype=torch.float32)
        except json.JSONDecodeError:
            traceback.print_exc()


def main():
    for sample in read():
        dist.all_reduce(sample)
    print("done", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
