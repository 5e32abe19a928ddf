"""Write run.json, which describes a run: configuration, hosts and outcome. See docs/reference/run-folder.md."""

import platform
import shutil
import socket
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
import torch.distributed as dist

from trainer.config import JobConfig, as_dict
from trainer.models.decoder import model_args
from trainer.parallel.mesh import World
from workbench.recorders.files import RankInfo, read_json, write_json
from workbench.recorders.memory.limits import soft_limits
from workbench.recorders.secret_text import without_secrets

_ARTEFACTS = ("dumps", "steps", "tb", "logs", "values", "not_finite")


class RunFile:
    """The file run.json; rank 0 writes it at the start of a run, and again if the run ends cleanly.

    If the run ends in any other way, the launcher corrects the file.
    """

    def __init__(self, config: JobConfig, world: World, facts: dict[str, object]) -> None:
        self.path = Path(config.job.dump_folder) / "run.json"
        self.writes = world.rank == 0
        self.content = _initial_content(config, world) | facts
        self._write()

    def end(self, step: int) -> None:
        self.content |= {"status": "completed", "ended_ns": time.time_ns(), "last_step": step}
        self._write()

    def _write(self) -> None:
        if self.writes:
            write_json(self.path, self.content)


def _initial_content(config: JobConfig, world: World) -> dict[str, object]:
    device = world.device
    return {
        "schema": "workbench.run/1",
        "argv": without_secrets(sys.argv),
        "config": as_dict(config),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "workbench": _workbench_version(),
        },
        "world_size": world.size,
        "mesh": world.degrees.described(),
        "device": device.type,
        # `platform.processor()` is empty on many Linux systems.
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "CPU",
        "backend": dist.get_backend(),
        "model": asdict(model_args(config)),
        "hosts": _host_names(world.size),
        "memory_limits": soft_limits(),
        "attempt": RankInfo.here().attempt,
        "started_ns": time.time_ns(),
        "ended_ns": None,
        "status": "running",
        "last_step": None,
    }


def _workbench_version() -> str | None:
    try:
        return version("torch-workbench")
    except PackageNotFoundError:
        return None


def _host_names(world_size: int) -> dict[str, str]:
    """Return the host names of all ranks, such as `{"0": "node7"}`; as a collective, every rank must call it."""
    names: list[str] = [""] * world_size
    dist.all_gather_object(names, socket.gethostname())
    return {str(rank): name for rank, name in enumerate(names)}


def move_earlier_run(config: JobConfig) -> None:
    """Move the files of an earlier run from the dump folder to previous/<its start time>/; checkpoints stay.

    Only rank 0 does this. After a restart of the same run nothing is moved, because the files show the cause of the
    restart. Logs that are newer than the earlier run.json belong to this run: the launcher opens them before the first
    rank starts.
    """
    folder = Path(config.job.dump_folder)
    run_file, rank_info = folder / "run.json", RankInfo.here()
    if rank_info.attempt > 0 or rank_info.rank > 0 or not run_file.exists():
        return
    ended = run_file.stat().st_mtime
    earlier = folder / "previous" / _start_stamp(run_file)
    profiling, metrics = config.profiling, config.metrics
    names = {*_ARTEFACTS, profiling.save_traces_folder, profiling.save_memory_snapshot_folder, metrics.save_tb_folder}
    for path in [folder / name for name in sorted(names - {"logs"})] + list((folder / "logs").glob("*")):
        if path.exists() and (path.parent == folder or path.stat().st_mtime <= ended):
            move(path, earlier / path.relative_to(folder))
    move(run_file, earlier / "run.json")


def _start_stamp(run_file: Path) -> str:
    """Return the start time in a run.json as a UTC timestamp that is valid as a folder name."""
    try:
        started = datetime.fromtimestamp(read_json(run_file)["started_ns"] / 1e9, UTC)
    except (KeyError, TypeError, ValueError, OverflowError):
        started = datetime.fromtimestamp(run_file.stat().st_mtime, UTC)
    return started.strftime("%Y%m%dT%H%M%S.%fZ")


def move(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(path, target)
