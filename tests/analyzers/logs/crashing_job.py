"""A small job that ends as its argument says; `record.py` stores its output as texts for the tests."""

import argparse
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path


def exception(rank, dist, torch):
    for step in range(4):
        loss = work(rank, dist, torch)
        print(f"step {step} loss {loss:.3f}", flush=True)
        if rank == 1 and step == 2:
            tokens = {"input_ids": []}
            tokens["labels"]


def chained(rank, dist, torch):
    work(rank, dist, torch)
    if rank == 2:
        try:
            int("12a")
        except ValueError as error:
            raise RuntimeError("cannot parse the manifest of shard 7") from error
    work(rank, dist, torch)


def sigkill(rank, dist, torch):
    for step in range(3):
        work(rank, dist, torch)
        print(f"[rank {rank}] step {step}", flush=True)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    work(rank, dist, torch)


def sigsegv(rank, dist, torch):
    import faulthandler

    faulthandler.enable()
    work(rank, dist, torch)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(1)
    work(rank, dist, torch)


def hang(rank, dist, torch):
    for step in range(5):
        if rank == 1 and step == 3:
            time.sleep(40)
        work(rank, dist, torch)
        print(f"rank={rank} step={step}", flush=True)


def early_exit(rank, dist, torch):
    for step in range(5 if rank else 3):
        work(rank, dist, torch)
        print(f"step {step}", flush=True)


def worker_killed(rank, dist, torch):
    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, index):
            if rank == 0 and index == 9:
                os.kill(os.getpid(), signal.SIGKILL)
            return torch.ones(4)

    for batch in torch.utils.data.DataLoader(Slow(), batch_size=4, num_workers=1):
        work(rank, dist, torch, batch.sum())


def worker_error(rank, dist, torch):
    class Broken(torch.utils.data.Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, index):
            if rank == 2 and index == 9:
                raise ValueError("sample 9 has no image")
            return torch.ones(4)

    for batch in torch.utils.data.DataLoader(Broken(), batch_size=4, num_workers=1):
        work(rank, dist, torch, batch.sum())


def disk_full(rank, dist, torch):
    work(rank, dist, torch)
    if rank == 0:
        with Path("/dev/full").open("w") as file:
            file.write("x" * 100_000)
    work(rank, dist, torch)


def missing_file(rank, dist, torch):
    work(rank, dist, torch)
    Path("/data/shards/part-00000.bin").read_bytes()


def mismatch(rank, dist, torch):
    work(rank, dist, torch)
    dist.all_reduce(torch.ones(8 if rank == 2 else 4))


def barrier(rank, dist, torch):
    work(rank, dist, torch)
    if rank == 2:
        time.sleep(12)
    dist.monitored_barrier(timeout=timedelta(seconds=4), wait_all_ranks=True)


def unused(rank, dist, torch):
    class Branches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk, self.extra = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x, branch):
            return self.extra(self.trunk(x)) if branch else self.trunk(x)

    model = torch.nn.parallel.DistributedDataParallel(Branches())
    for step in range(4):
        model(torch.ones(2, 4), rank != 1 or step < 2).sum().backward()
        print("step", step, flush=True)


def nan(rank, dist, torch):
    value = torch.tensor(4.0)
    for step in range(5):
        value = value * (float("nan") if step == 3 else 0.5)
        work(rank, dist, torch, value)
        print(f"step {step} loss {value.item():.4f}", flush=True)
        if not torch.isfinite(value):
            raise FloatingPointError(f"loss is {value.item()} at step {step}, stopping training")


def host_memory(rank, dist, torch):
    work(rank, dist, torch)
    if rank == 1:
        torch.empty(1 << 46, dtype=torch.float32)
    work(rank, dist, torch)


def sizes(rank, dist, torch):
    work(rank, dist, torch)
    dist.all_reduce(torch.ones(1 << 16 if rank else 1 << 14))
    time.sleep(5)


def unreachable(rank, dist, torch):
    raise AssertionError("the process group cannot be reached")


def recorded_error(rank, dist, torch):
    from torch.distributed.elastic.multiprocessing.errors import record

    @record
    def main():
        work(rank, dist, torch)
        if rank == 1:
            raise ValueError("batch 17 has 0 tokens")
        work(rank, dist, torch)

    main()


def completed(rank, dist, torch):
    for step in range(4):
        print(f"step {step} loss {work(rank, dist, torch):.3f}", flush=True)
    if not rank:
        print("Training completed.", flush=True)


def terminated(rank, dist, torch):
    for step in range(200):
        work(rank, dist, torch)
        print("step", step, flush=True)
        time.sleep(0.3)


def work(rank, dist, torch, value=None):
    tensor = torch.ones(4) if value is None else value.clone()
    dist.all_reduce(tensor)
    return float(tensor.sum())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("--lr", type=float)
    options = parser.parse_args()
    if options.case == "import_error":
        import flash_attn_kernels  # noqa: F401
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    rank = dist.get_rank()
    globals()[options.case](rank, dist, torch)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
