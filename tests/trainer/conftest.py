"""Train small runs that tests share: each runs once per session, in real processes."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ranks import run_job

SMALL = [
    "--training.seq_len", "64", "--training.steps", "6", "--training.mixed_precision_param", "float32",
    "--optimizer.lr", "4e-3", "--lr_scheduler.warmup_steps", "2", "--lr_scheduler.decay_ratio", "0.5",
    "--metrics.log_freq", "1", "--debug.seed", "7", "--debug.deterministic", "--activation_checkpoint.mode", "none",
]  # fmt: skip


@dataclass(frozen=True)
class Trained:
    """A finished training run: its folder and how it ended."""

    folder: Path
    returncode: int
    output: str

    def lines(self, rank: int = 0) -> list[dict[str, Any]]:
        """Return the lines of a rank's step log, without the header."""
        text = (self.folder / "steps" / f"rank_{rank}.jsonl").read_text()
        return [line for line in map(json.loads, text.splitlines()) if "step" in line]

    def losses(self, rank: int = 0) -> dict[int, float]:
        return {line["step"]: line["loss"] for line in self.lines(rank)}

    def manifest(self) -> dict[str, Any]:
        return json.loads((self.folder / "run.json").read_text())


def train(folder: Path, ranks: int, *flags: str, **environment: str) -> Trained:
    """Train a small model."""
    ended = run_job(
        "trainer", [*SMALL, *flags, "--job.dump_folder", str(folder)], folder / "output", ranks, **environment
    )
    return Trained(folder, ended.returncode, ended.output)


@pytest.fixture(scope="session", name="train")
def train_fixture() -> Callable[..., Trained]:
    """Fixture: `train(folder, ranks, *flags)` trains a small model."""
    return train


@pytest.fixture(scope="session")
def run_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Trained]:
    """Fixture: `run_once(name, ranks, *flags)` returns the run with this name; the first call trains it."""
    made: dict[str, Trained] = {}

    def run(name: str, ranks: int, *flags: str) -> Trained:
        if name not in made:
            made[name] = train(tmp_path_factory.mktemp(name), ranks, *flags)
            assert made[name].returncode == 0, made[name].output
        return made[name]

    return run


@pytest.fixture(scope="session")
def fsdp(run_once: Callable[..., Trained]) -> Trained:
    """Fixture: a run of two ranks with FSDP2, six steps, a checkpoint every three steps, and all TensorBoard
    metrics.
    """
    checkpoints = ["--checkpoint.enable", "--checkpoint.interval", "3", "--checkpoint.no_last_save_model_only"]
    tensorboard = ["--metrics.enable_tensorboard", "--comm.train_timeout_seconds", "33"]
    return run_once("fsdp", 2, "--training.local_batch_size", "4", *checkpoints, *tensorboard)


@pytest.fixture
def one_rank_group() -> Iterator[None]:
    """Fixture: a process group with this process as its only rank."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
