"""A handler for uncaught exceptions writes the traceback into a file of its own and prints one line.

class: crashed
culprit: 2
ranks: 3
collection: fifth
logs: exit_code 0,1,2
"""

import os
import sys
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def report(kind, error, trace):
    path = Path(tempfile.mkdtemp()) / "crash_report.txt"
    path.write_text("".join(traceback.format_exception(kind, error, trace)))
    print(f"The run failed. A report was saved to {path}.", file=sys.stderr, flush=True)


def main():
    sys.excepthook = report
    offsets = list(range(20))
    for step in range(9):
        index = 20 if dist.get_rank() == 2 and step == 6 else step
        value = torch.tensor([float(offsets[index])])
        dist.all_reduce(value)
        print(f"step {step} offset {value.item()}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
