"""Measure the cost of the recorder of CPU memory snapshots, for a step that it skips and one that it records.

    python benchmarks/overhead/memory_recorder.py [--steps 20]

Trains the debug model on one thread, with and without the recorder in turn and in the same process, and compares
processor time. Exits with 1 if a skipped step costs more than 10 % more.
"""

import argparse
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from trainer.config.load import load
from trainer.models.decoder import build_model
from workbench.recorders import RecorderOptions, Recorders
from workbench.recorders.memory.recorder import MemoryRecorder

CONFIG = Path(__file__).parents[2] / "configs" / "debug_model.toml"
ALLOWED = 0.10
FREQ = 1_000_000


def debug_model() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    """Return the debug model with weights, its optimizer, and one step of training."""
    config = load(CONFIG)
    model = build_model(config).to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters())
    shape = (config.training.local_batch_size, config.training.seq_len + 1)

    def train() -> None:
        tokens = torch.randint(0, 256, shape)
        logits = model(tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, train


def seconds(run: Callable[[], None]) -> float:
    """Return the processor seconds of a call."""
    started = time.process_time()
    run()
    return time.process_time() - started


def measure(steps: int, *, record: bool) -> tuple[float, float]:
    """Return the median processor seconds of a step without the recorder, and with it."""
    model, optimizer, train = debug_model()
    first = FREQ - 2 * steps if record else 1
    bare, recorded = list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        Recorders.prepare(RecorderOptions(folder))
        memory = MemoryRecorder(folder, model, optimizer, freq=FREQ, window=2 * steps if record else 1)

        def with_recorder(step: int) -> None:
            with memory.recording(step):
                train()
            memory.finish()

        for step in range(first, first + steps + 3):
            bare.append(seconds(train))
            recorded.append(seconds(lambda step=step: with_recorder(step)))  # type: ignore[misc]
        memory.close()
    return statistics.median(bare[3:]), statistics.median(recorded[3:])


def main() -> None:
    """Print both costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    gc.disable()
    shares = {}
    for name, record in (("left out", False), ("recorded", True)):
        bare, recorded = measure(steps, record=record)
        shares[name] = recorded / bare - 1
        print(f"{name}: {bare * 1e3:.1f} ms -> {recorded * 1e3:.1f} ms of processor time ({shares[name]:+.0%})")
    sys.exit(shares["left out"] > ALLOWED)


if __name__ == "__main__":
    main()
