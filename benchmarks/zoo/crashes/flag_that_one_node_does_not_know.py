"""One node runs an older version of the script's options and does not know a flag of the common command line.

class: startup, exit_code, crashed, dead
culprit: 2
ranks: 3
collection: third, kept back
"""

import argparse
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

COMMAND_LINE = ["--lr", "0.1", "--warmup-ratio", "0.03"]


def options():
    parser = argparse.ArgumentParser(prog="train.py")
    parser.add_argument("--lr", type=float)
    if os.environ["RANK"] != "2":
        parser.add_argument("--warmup-ratio", type=float)
    return parser.parse_args(COMMAND_LINE)


def main():
    asked = options()
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
    print("learning rate", asked.lr, flush=True)
    for _ in range(5):
        dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()


main()
