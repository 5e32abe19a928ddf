"""Measure how far the what-if `optim_dtype` is from runs whose optimizer moments really have that type.

    python -m benchmarks.optimizer_state

The trainer has no such setting. Here its model is trained on one rank by an Adam that stores its moments in another
type and computes in float32, like the libraries that offer this; for int8, scales and small moments stay in float32.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from analyzers.memory import analyze
from analyzers.memory.what_if import what_if
from analyzers.run import Artefact, Kind, discover

ROOT = Path(__file__).parents[1]
STEPS = 3
BLOCK, LEAST = 256, 4096
LARGE, SHORT = ("--model.flavor", "debugmodel_large"), ("--training.seq_len", "16", "--training.local_batch_size", "1")
CASES = [
    ((), "bfloat16"),
    (LARGE, "bfloat16"),
    (LARGE, "int8"),
    ((*LARGE, *SHORT), "bfloat16"),
    ((*LARGE, *SHORT), "int8"),
]


class SmallAdam(torch.optim.Optimizer):
    """Adam whose moments have type `kind`; int8 moments are stored in blocks with a scale each."""

    def __init__(self, parameters: Any, kind: str) -> None:
        super().__init__(parameters, {"lr": 1e-3})
        self.kind = kind

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state.setdefault("step", torch.tensor(0.0)).add_(1)
            means = []
            for name, beta, news in (("exp_avg", 0.9, parameter.grad), ("exp_avg_sq", 0.95, parameter.grad**2)):
                old = unpacked(state, name, parameter)
                means.append(old.lerp_(news, 1 - beta))
                state.update(packed(name, old, self.kind))
            parameter.addcdiv_(means[0], means[1].sqrt_().add_(1e-8), value=-self.param_groups[0]["lr"])


def packed(name: str, moment: Tensor, kind: str) -> dict[str, Tensor]:
    if kind != "int8":
        return {name: moment.to(getattr(torch, kind))}
    if moment.numel() < LEAST or moment.numel() % BLOCK:
        return {name: moment}
    blocks = moment.view(-1, BLOCK)
    scale = blocks.abs().amax(dim=1, keepdim=True).clamp_(min=1e-12) / 127
    return {name: (blocks / scale).round_().to(torch.int8), f"{name}_scale": scale}


def unpacked(state: dict[str, Tensor], name: str, parameter: Tensor) -> Tensor:
    if name not in state:
        return torch.zeros_like(parameter)
    moment = state[name].to(torch.float32, copy=True)
    scale = state.get(f"{name}_scale")
    return moment if scale is None else moment.mul_(scale).view_as(parameter)


def train(folder: str, kind: str, *arguments: str) -> None:
    from trainer.config import load
    from trainer.models.decoder import build_model, init_weights
    from trainer.step import mean_loss
    from workbench.recorders.memory.recorder import MemoryRecorder

    config = load(None, arguments)
    model = build_model(config)
    model.to_empty(device="cpu")
    init_weights(model, 1)
    optimizer = SmallAdam(model.parameters(), kind)
    memory = MemoryRecorder(folder, model, optimizer, freq=STEPS)
    for number in range(1, STEPS + 1):
        with memory.step(number):
            rows = torch.randint(256, (config.training.local_batch_size, config.training.seq_len + 1))
            with memory.phase("fwd"):
                loss = mean_loss(model(rows[:, :-1]), rows[:, 1:])
            with memory.phase("bwd"):
                loss.backward()
            with memory.phase("optim"):
                optimizer.step()
                optimizer.zero_grad()
    memory.close()


def record(folder: Path, kind: str, flags: tuple[str, ...]) -> Artefact:
    """Return the snapshot of a real run on the CPU."""
    target = folder / "_".join([kind, *flags[1::2]])
    command = [sys.executable, "-m", "benchmarks.optimizer_state", str(target), kind]
    command += ["--job.config_file", str(ROOT / "configs/fsdp.toml"), *flags]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    return discover(target).of(Kind.SNAPSHOT)[0]


def compared(folder: Path, flags: tuple[str, ...], kind: str) -> tuple[int, int, int]:
    """Return three peaks in bytes: measured with float32, measured with `kind`, and predicted for `kind`."""
    [told] = what_if([record(folder, "float32", flags)], f"optim_dtype={kind}")
    [device] = analyze([record(folder, kind, flags)]).data.devices
    return told.peak_bytes, device.peak_allocated_bytes, told.new_peak_bytes


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for flags, kind in CASES:
            was, real, told = compared(Path(folder), flags, kind)
            print(f"| {' '.join(flags[1::2])} | optim_dtype={kind} | {was:,} | {real:,} | {told:,} |", end="")
            print(f" {told / real - 1:+.1%} | {real / was - 1:+.0%} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(*sys.argv[1:])
    else:
        main()
