"""Join and leave the process group of a rank, and set timeouts, random seeds and the deterministic mode."""

import os
import random
import sys
import zlib
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from trainer.config import JobConfig
from trainer.config.checks import checked_mesh
from trainer.config.converters import check_devices
from trainer.config.sections import Debug
from trainer.parallel.mesh import World, build_world
from workbench.recorders.hang.flight_recorder import CHECKPOINT_GROUP


def join(config: JobConfig) -> World:
    """Join the process group that torchrun's environment describes, or create one of a single rank."""
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    os.environ.setdefault("MASTER_ADDR", "localhost")
    # Port 0 means any free one; a single rank has nobody to tell it to.
    os.environ.setdefault("MASTER_PORT", "0")
    device = _own_device()
    size = int(os.environ["WORLD_SIZE"])
    degrees = checked_mesh(config, size)
    check_devices(config, torch.cuda.get_device_capability(device) if device.type == "cuda" else None)
    dist.init_process_group(
        backend(device, offload=degrees.offload),
        timeout=timedelta(seconds=config.comm.init_timeout_seconds),
        # With a device, NCCL connects eagerly and the first collective finds a wrong setup early.
        device_id=device if device.type == "cuda" else None,
    )
    return build_world(degrees, dist.get_rank(), size, device)


def backend(device: torch.device, *, offload: bool) -> str:
    """Return the backend of the process group for tensors on `device`.

    With CPU offload, the backend includes gloo: gradients are then in CPU memory, where their norm is reduced.
    """
    if device.type == "cpu":
        return "gloo"
    return "cpu:gloo,cuda:nccl" if offload else "nccl"


def _own_device() -> torch.device:
    """Return the device of this rank: the CUDA device with the number of its local rank, or the CPU without CUDA."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def set_timeouts(seconds: int) -> None:
    """Set the timeout of later collectives in all process groups, except the group that saves checkpoints.

    A checkpoint may take longer than a training step.
    """
    for group in list(distributed_c10d._world.pg_map):  # noqa: SLF001 - there is no public list of groups
        if group.group_desc != CHECKPOINT_GROUP:
            distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)  # noqa: SLF001


def seed_everything(config: Debug, device: torch.device) -> int:
    """Seed all random generators and return the seed, which is the same on all ranks.

    If the configuration asks for them, also select deterministic kernels.
    """
    if config.deterministic:
        # cuBLAS is deterministic only with a fixed workspace; without this setting torch raises an error or warns.
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True, warn_only=config.deterministic_warn_only)
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
    torch.autograd.set_detect_anomaly(config.detect_anomaly)
    own_seed = random.SystemRandom().randrange(2**31) if config.seed is None else config.seed
    shared_seed = torch.tensor(own_seed, dtype=torch.int64, device=device)
    dist.broadcast(shared_seed, src=0)
    seed = int(shared_seed)
    # This process has already read it, so it is for child processes; Python accepts no more than 32 bits.
    os.environ["PYTHONHASHSEED"] = str(seed % 2**32)
    random.seed(seed)
    torch.manual_seed(seed)
    return seed


def seed_step(seed: int, stage: int, step: int) -> None:
    """Seed the random generators for one step: equally on all ranks of a pipeline stage, differently in each stage.

    The random numbers of a step depend only on `seed`, `stage` and `step`. So a resumed run draws the same numbers on
    any mesh.
    """
    text = f"{seed}/{stage}/{step}".encode()
    # Not `hash`, which Python salts differently in each process.
    _seed_here(zlib.crc32(text))


def _seed_here(seed: int) -> None:
    """Seed the random generators of the CPU and of the GPUs, as `torch.manual_seed` does, but a hundred times faster.

    For each kind of device that PyTorch knows and this machine lacks, `torch.manual_seed` formats a call stack: 0.3 ms
    in each step.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


def leave() -> NoReturn:
    """Destroy the process group and end this process at once, without the interpreter's normal shutdown.

    In a normal shutdown, gloo's threads sometimes abort the process, although the run was successful.
    """
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
