"""Compute the metrics of a run, and log them under torchtitan's names and in torchtitan's line format."""

import importlib
import logging
import os
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import torch

from trainer.config import JobConfig, as_dict
from trainer.parallel.mesh import World


class MetricWriter(Protocol):
    def write(self, values: Mapping[str, float], step: int) -> None:
        """Write {metric name: value} of one step."""

    def close(self) -> None:
        """Flush and close the destination."""


class TensorBoard:
    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(folder)

    def write(self, values: Mapping[str, float], step: int) -> None:
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step)

    def close(self) -> None:
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
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


def _metric_writers(config: JobConfig, world: World) -> Iterator[MetricWriter]:
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


GIB = 2**30
_PEAK_FLOPS = {
    "A100": 312e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "H200": 989e12,
    "B200": 2250e12,
    "MI250X": 191.5e12,
    "MI300X": 1300e12,
    "MI325X": 1300e12,
    "MI355X": 2500e12,
}
"""{part of a device's name: its dense bf16 operations per second}, from data sheets; the first match counts."""
_COLORS = {"step": 31, "loss": 32, "grad_norm": 33, "memory": 36, "tps": 34, "tflops": 36, "mfu": 35}
logger = logging.getLogger("root")


@dataclass(frozen=True)
class Usage:
    """Peak memory and capacity of the device in bytes, and the numbers of retried and failed allocations.

    On a CPU, both peaks are the largest resident memory of the process.
    """

    active: int
    reserved: int
    capacity: int
    retries: int = 0
    ooms: int = 0

    def maximum(self, other: "Usage") -> "Usage":
        return Usage(*map(max, astuple(self), astuple(other)))


@dataclass(frozen=True)
class StepMetrics:
    """The metrics of a step that the training loop computes; `Meter` computes speed, times and memory."""

    step: int
    loss: float
    """The mean loss over all ranks."""
    max_loss: float
    grad_norm: float
    lr: float
    tokens_seen: int
    """The number of tokens on which all ranks together have trained since the first step."""


class Meter:
    """Counts tokens and seconds between two logged steps, and logs metrics to the console and the metric writers."""

    def __init__(self, config: JobConfig, world: World, flops_per_token: int) -> None:
        self.device, self.flops_per_token = world.device, flops_per_token
        self.peak_flops = peak_flops(world.device)
        self.colors = not config.metrics.disable_color_printing and sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self.writers = list(_metric_writers(config, world))
        self._restart()

    def _restart(self) -> None:
        self.tokens, self.steps, self.data_s = 0.0, 0, 0.0
        self.usage = Usage(0, 0, 0)
        self.started = time.perf_counter()

    @property
    def utilisation_constants(self) -> dict[str, float | None]:
        """The FLOPs per token and the device's peak FLOP/s; model-FLOPs utilisation (MFU) is computed from them."""
        return {"flops_per_token": self.flops_per_token, "peak_flops": self.peak_flops}

    def add_data_wait(self, seconds: float) -> None:
        self.data_s += seconds

    def add_step(self, tokens: float) -> None:
        self.tokens += tokens
        self.steps += 1
        self.usage = self.usage.maximum(_memory_usage(self.device))

    def report(self, metrics: StepMetrics) -> None:
        """Log the metrics of the steps since the last report, and reset the counters."""
        seconds = time.perf_counter() - self.started
        tps = self.tokens / seconds
        tflops = tps * self.flops_per_token / 1e12
        mfu = 100 * tflops * 1e12 / self.peak_flops if self.peak_flops else None
        logger.info(self.line(metrics, {"tps": tps, "tflops": tflops}, mfu))
        if self.writers:
            values = self.scalars(metrics, seconds)
            values |= {"throughput(tps)": tps, "tflops": tflops} | ({} if mfu is None else {"mfu(%)": mfu})
            self.write(values, metrics.step)
        self._restart()

    def report_validation(self, step: int, loss: float) -> None:
        logger.info("validate step: %2d  loss: %7.4f", step, loss)
        self.write({"validation_metrics/global_avg_loss": loss}, step)

    def write(self, values: Mapping[str, float], step: int) -> None:
        for writer in self.writers:
            writer.write(values, step)

    def line(self, metrics: StepMetrics, rates: dict[str, float], mfu: float | None) -> str:
        """Return the console line of a step, in torchtitan's format.

        `rates` has tokens (`tps`) and TFLOPs per second. `mfu` is in per cent; None is shown as N/A.
        """
        usage = self.usage
        parts = {
            "step": f"{metrics.step:2}",
            "loss": f"{metrics.loss:7.4f}",
            "grad_norm": f"{metrics.grad_norm:7.4f}",
            "memory": f"{usage.reserved / GIB:5.2f}GiB({100 * usage.reserved / usage.capacity:.2f}%)",
            "tps": f"{round(rates['tps']):,}",
            "tflops": f"{rates['tflops']:,.2f}",
            "mfu": "N/A" if mfu is None else f"{mfu:.2f}%",
        }
        return "  ".join(self.colored(name, f"{name}: {text}") for name, text in parts.items())

    def colored(self, name: str, text: str) -> str:
        """Return `text` in the terminal colour of metric `name`; unchanged if the console shows no colours."""
        return f"\x1b[{_COLORS[name]}m{text}\x1b[39m" if self.colors else text

    def scalars(self, metrics: StepMetrics, seconds: float) -> dict[str, float]:
        """Return {torchtitan's metric name: value} of all metrics except the speeds.

        `seconds` is the time since the last report.
        """
        usage = self.usage
        return {
            "loss_metrics/global_avg_loss": metrics.loss,
            "loss_metrics/global_max_loss": metrics.max_loss,
            "grad_norm": metrics.grad_norm,
            "n_tokens_seen": metrics.tokens_seen,
            "lr": metrics.lr,
            "time_metrics/end_to_end(s)": seconds / self.steps,
            "time_metrics/data_loading(s)": self.data_s / self.steps,
            "time_metrics/data_loading(%)": 100 * self.data_s / seconds,
            "memory/max_active(GiB)": usage.active / GIB,
            "memory/max_active(%)": 100 * usage.active / usage.capacity,
            "memory/max_reserved(GiB)": usage.reserved / GIB,
            "memory/max_reserved(%)": 100 * usage.reserved / usage.capacity,
            "memory/num_alloc_retries": usage.retries,
            "memory/num_ooms": usage.ooms,
        }

    def close(self) -> None:
        for writer in self.writers:
            writer.close()


def _memory_usage(device: torch.device) -> Usage:
    """Return the peak memory of `device`: on CUDA of the current step, on a CPU since the start of the process."""
    if device.type == "cpu":
        # ru_maxrss is in bytes on macOS and in KiB on Linux.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return Usage(peak, peak, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    stats = torch.cuda.memory_stats(device)
    capacity = torch.cuda.get_device_properties(device).total_memory
    active, reserved = stats["active_bytes.all.peak"], stats["reserved_bytes.all.peak"]
    return Usage(active, reserved, capacity, stats["num_alloc_retries"], stats["num_ooms"])


def peak_flops(device: torch.device) -> float | None:
    """Return the peak bf16 FLOP/s in the device's data sheet; None if the device is unknown."""
    if device.type == "cpu":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in _PEAK_FLOPS.items() if part in name), None)


def start_logging() -> None:
    """Log to standard output in torchtitan's line format, but with the name of this project."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("[trainer] %(asctime)s - %(name)s - %(levelname)s - %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
