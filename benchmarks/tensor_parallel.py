"""How far `workbench estimate` is with tensor parallelism from real ranks: python -m benchmarks.tensor_parallel.

The trainer itself has no tensor parallelism. Each rank here trains its model laid out as the estimate takes it to be.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from analyzers.memory import analyze
from analyzers.run import Kind, discover
from trainer.config import load
from trainer.estimate.tensor_parallel import apply_tensor_parallel, loss_over
from trainer.models.decoder import build_model, init_weights
from trainer.optim import build_optimizer
from trainer.parallel.activation_checkpoint import apply_activation_checkpointing
from trainer.recorders.memory import MemoryRecorder
from trainer.step import mean_loss
from workbench.estimate import estimate
from workbench.launch.plan import Request

ROOT = Path(__file__).parents[1]
STEPS = 3
LARGE, FULL = ("--model.flavor", "debugmodel_large"), ("--activation_checkpoint.mode", "full")
CASES = [(2, ()), (2, ("--training.local_batch_size", "8")), (2, FULL), (2, LARGE), (4, LARGE)]


def train(folder: str, *arguments: str) -> None:
    """One rank, which leaves a snapshot of its last step."""
    config = load(None, arguments)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = build_model(config)
    apply_tensor_parallel(model, mesh)
    apply_activation_checkpointing(model, config.activation_checkpoint)
    model.to_empty(device="cpu")
    init_weights(model, 1)
    optimizer = build_optimizer(model, config.optimizer)
    memory = MemoryRecorder(folder, model, optimizer, freq=STEPS)
    for number in range(1, STEPS + 1):
        with memory.step(number), loss_over(mesh):
            with memory.phase("data_wait"):
                rows = torch.randint(256, (config.training.local_batch_size, config.training.seq_len + 1))
            with memory.phase("fwd"):
                loss = mean_loss(model(rows[:, :-1]), rows[:, 1:])
            with memory.phase("bwd"):
                loss.backward()
            with memory.phase("optim"):
                optimizer.step()
                optimizer.zero_grad()
    memory.close()
    dist.destroy_process_group()


def measured(ranks: int, flags: tuple[str, ...], folder: str) -> tuple[int, dict[str, int]]:
    """(peak of rank 0, its bytes by category)."""
    agent = ["-m", "torch.distributed.run", "--nproc_per_node", str(ranks), __file__, folder]
    subprocess.run(
        [sys.executable, *agent, "--job.config_file", str(ROOT / "configs/fsdp.toml"), *flags],
        check=True, capture_output=True, env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    first = next(d for d in analyze(discover(Path(folder)).of(Kind.SNAPSHOT)).data.devices if d.rank == 0)
    return first.peak_allocated_bytes, first.categories


def estimated(ranks: int, flags: tuple[str, ...]) -> tuple[int, dict[str, int]]:
    """The same, without running."""
    overrides = (*flags, "--parallelism.tensor_parallel_degree", str(ranks))
    told = estimate(Request(config=str(ROOT / "configs/fsdp.toml"), nproc=ranks, overrides=overrides), None)
    return told.data.ranks[0].peak_bytes, told.data.ranks[0].categories


def main() -> None:
    for ranks, flags in CASES:
        with tempfile.TemporaryDirectory() as folder:
            real, held = measured(ranks, flags, folder)
        told, foreseen = estimated(ranks, flags)
        print(f"tp {ranks} {' '.join(flags[1::2]):24} {real:>12,} {told:>12,} {told / real - 1:>+8.1%}", flush=True)
        if "--categories" in sys.argv:
            print({name: (size, foreseen.get(name, 0)) for name, size in held.items() if size})


if __name__ == "__main__":
    if "LOCAL_RANK" in os.environ:
        train(*sys.argv[1:])
    else:
        main()
