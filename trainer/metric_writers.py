"""Write metrics not only to the console, but also to TensorBoard files and to an offline wandb run."""

import importlib
import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from trainer.config import JobConfig, as_dict
from trainer.parallel.mesh import World


class MetricWriter(Protocol):
    """A destination for the metrics of a step besides the console."""

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Write {metric name: value} of one step."""

    def close(self) -> None:
        """Flush and close the destination."""


class TensorBoard:
    """Writes metrics as TensorBoard event files."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(folder)

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Write {metric name: value} of one step."""
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step)

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


class Wandb:
    """Writes a wandb run below `folder`.

    The run stays offline unless WANDB_MODE says otherwise; `wandb sync` uploads it later. As in torchtitan,
    WANDB_PROJECT and WANDB_RUN_NAME set the project and the name of the run.
    """

    def __init__(self, folder: Path, config: JobConfig, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # Loaded by name: the package is optional.
        self._run: Any = importlib.import_module("wandb").init(
            mode=os.environ.get("WANDB_MODE", "offline"),
            project=os.environ.get("WANDB_PROJECT", "torch-workbench"),
            name=os.environ.get("WANDB_RUN_NAME"),
            dir=str(folder),
            config=as_dict(config) | {"rank": rank},
        )

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Write {metric name: value} of one step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Finish the wandb run."""
        self._run.finish()


def metric_writers(config: JobConfig, world: World) -> Iterator[MetricWriter]:
    """Yield the metric writers of this rank, as the [metrics] section of the configuration sets."""
    metrics, folder = config.metrics, Path(config.job.dump_folder)
    if world.rank != 0 and not metrics.save_for_all_ranks:
        return
    if metrics.enable_tensorboard:
        # As in torchtitan: each start of a run has a folder of its own.
        started = datetime.now().strftime("%Y%m%d-%H%M")  # noqa: DTZ005
        target = folder / metrics.save_tb_folder / started
        yield TensorBoard(target / f"rank_{world.rank}" if metrics.save_for_all_ranks else target)
    if metrics.enable_wandb:
        yield Wandb(folder, config, world.rank)
