"""A worker of the data loader is killed once; the script prints the error, builds the loader again and goes on.

class: healthy
culprit: none
ranks: 2
collection: third, kept back
"""

import contextlib
import os
import signal
import tempfile
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from workbench import recorders  # recorders


class Samples(Dataset):
    def __init__(self, marker):
        self.marker = marker

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == 6 and not os.path.exists(self.marker):
            open(self.marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.randn(4)


def batches(marker):
    for attempt in range(3):
        try:
            yield from DataLoader(Samples(marker), batch_size=2, num_workers=1)
        except (RuntimeError, ConnectionError):
            with contextlib.suppress(RuntimeError):
                time.sleep(0.5)  # the loader's signal handler reports the dead worker once more
            traceback.print_exc()
            print(f"data loader failed (attempt {attempt}), building it again", flush=True)
        else:
            return


def main():
    rank = dist.get_rank()
    marker = os.path.join(tempfile.mkdtemp(), "killed")
    batch_of = iter(list(batches(marker))) if rank == 0 else iter(torch.randn(20, 2, 4))
    for step in range(6):
        batch = next(batch_of)
        dist.all_reduce(batch)
        print(f"rank {rank} step {step} loss {batch.mean().item():.3f}", flush=True)
    print("finished", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=30))
recorders.start(os.environ["OUTPUTS"], timeout_s=30)  # recorders
main()
dist.destroy_process_group()
