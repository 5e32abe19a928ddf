"""Measure the cost of the start-up hook of `workbench launch -- COMMAND`.

    python benchmarks/overhead/launch_hook.py [--pairs 40] [--blocks 40]

The costs are those of starting a process without torch, of starting a rank, and of a step. Interpreters start with and
without the hook in turn; a rank trains with and without it in turn, in the same process.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from workbench.launch.recording import START_UP, VARIABLE

ROOT = Path(__file__).parents[2]
BLOCK_STEPS = 20
TRAIN = """
import json, statistics, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.utils.data import dataloader, DataLoader, TensorDataset
from torch.optim import optimizer as optim

began = time.process_time()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
size, layers, blocks, steps = map(int, sys.argv[1:])
model = nn.parallel.DistributedDataParallel(nn.Sequential(*(nn.Linear(size, size) for _ in range(layers))))
optimizer = torch.optim.AdamW(model.parameters())
start_s = time.process_time() - began
data = DataLoader(TensorDataset(torch.randn(8 * 10**5, size)[: 8 * blocks * steps * 3]), batch_size=8)
batches = iter(data)

def run(steps):
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        optimizer.zero_grad()
        model(next(batches)[0]).square().mean().backward()
        optimizer.step()
    return (time.perf_counter() - wall) / steps, (time.process_time() - cpu) / steps

run(steps)
hooked = hasattr(torch.autograd.backward, "__wrapped__")
times = {True: [], False: []}
if hooked:
    iterator = dataloader._BaseDataLoaderIter
    on = iterator.__next__, torch.autograd.backward
    hooks = dict(optim._global_optimizer_pre_hooks), dict(optim._global_optimizer_post_hooks)
for block in range(blocks if hooked else 0):
    for state in (block % 2 == 0, block % 2 == 1):
        functions = on if state else tuple(function.__wrapped__ for function in on)
        iterator.__next__, torch.autograd.backward = functions
        for kind, known in zip((optim._global_optimizer_pre_hooks, optim._global_optimizer_post_hooks), hooks):
            kind.clear()
            kind.update(known if state else {})
        times[state].append(run(steps))
print(json.dumps([start_s, times[True], times[False]]))
"""


def environment(folder: str, *, hooked: bool) -> dict[str, str]:
    told = json.dumps({"folder": folder, "root": str(ROOT)})
    plain = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", VARIABLE)}
    return plain | {"OMP_NUM_THREADS": "1"} | ({"PYTHONPATH": str(START_UP), VARIABLE: told} if hooked else {})


def processor_s(program: str, *, hooked: bool) -> float:
    """Return the processor seconds of an interpreter that runs a program."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], env=environment("unused", hooked=hooked), check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def start_up(program: str, pairs: int) -> None:
    """Print the time that the hook adds to the start of an interpreter: the median difference of pairs of starts."""
    processor_s(program, hooked=True)
    seconds = [(processor_s(program, hooked=True), processor_s(program, hooked=False)) for _ in range(pairs)]
    added = statistics.median(hooked - plain for hooked, plain in seconds)
    plain = statistics.median(plain for _, plain in seconds)
    print(f"{program!r}: {plain * 1e3:.1f} ms of processor time, the hook adds {added * 1e3:+.2f} ms ({pairs} pairs)")


def train(size: int, layers: int, blocks: int) -> None:
    """Print the time that the hook adds to the start of a rank, and to a step of a model with `layers` layers."""
    words = [str(number) for number in (size, layers, blocks, BLOCK_STEPS)]
    start_s = {}
    for hooked in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", TRAIN, *words]
            run = subprocess.run(
                command, env=environment(folder, hooked=hooked), check=True, stdout=subprocess.PIPE, text=True
            )
        start_s[hooked], with_hook, without = json.loads(run.stdout)
        if hooked:
            ratio = [statistics.median(a[k] / b[k] for a, b in zip(with_hook, without, strict=True)) for k in (0, 1)]
            added = statistics.median(a[1] - b[1] for a, b in zip(with_hook, without, strict=True))
            wall = statistics.median(b[0] for b in without)
            print(
                f"step of {layers} layers of {size}: {wall * 1e3:.2f} ms; the hook adds {added * 1e6:.0f} us"
                f" of processor time, ratio {ratio[1]:.4f} (wall clock {ratio[0]:.4f}), {blocks} pairs"
            )
    print(f"process group, model, optimizer: {start_s[False]:.2f} s of processor time, hooked {start_s[True]:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--blocks", type=int, default=40)
    asked = parser.parse_args()
    began = time.monotonic()
    start_up("pass", asked.pairs)
    start_up("import torch", max(3, asked.pairs // 10))
    train(64, 2, asked.blocks)
    train(512, 8, asked.blocks)
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
