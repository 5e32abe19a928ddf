"""What a run tells of itself: torchtitan's line on the console, and its tags in TensorBoard."""

import logging
import os
import resource
import sys
import time
from dataclasses import astuple, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from trainer.config import JobConfig
from trainer.parallel.mesh import World

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

GIB = 2**30
PEAK_FLOPS = {
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
"""Part of a device's name -> dense bf16 operations a second, from the makers' data sheets; the first match counts."""
COLORS = {"step": 31, "loss": 32, "grad_norm": 33, "memory": 36, "tps": 34, "tflops": 36, "mfu": 35}
logger = logging.getLogger("root")


@dataclass(frozen=True)
class Usage:
    """Memory of the device, in bytes; on a CPU the resident set of this process."""

    active: int
    reserved: int
    capacity: int
    retries: int = 0
    ooms: int = 0

    def highest(self, other: "Usage") -> "Usage":
        """The higher one of each."""
        return Usage(*map(max, astuple(self), astuple(other)))


@dataclass(frozen=True)
class Measured:
    """What the training loop knows after a step that is logged."""

    step: int
    loss: float
    """Mean over the ranks."""
    max_loss: float
    grad_norm: float
    lr: float
    tokens_seen: int
    """By all ranks since the first step."""


class Meter:
    """Counts tokens and time between two logged steps, and reports."""

    def __init__(self, config: JobConfig, world: World, flops_per_token: int) -> None:
        self.device, self.flops_per_token = world.device, flops_per_token
        self.peak_flops = peak_flops(world.device)
        self.colors = not config.metrics.disable_color_printing and sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self.board = board(config, world)
        self._restart()

    def _restart(self) -> None:
        self.tokens, self.steps, self.data_s = 0, 0, 0.0
        self.usage = Usage(0, 0, 0)
        self.started = time.perf_counter()

    @property
    def speed(self) -> dict[str, float | None]:
        """What turns tokens a second into model-flops utilisation."""
        return {"flops_per_token": self.flops_per_token, "peak_flops": self.peak_flops}

    def waited(self, seconds: float) -> None:
        """Add a wait for data."""
        self.data_s += seconds

    def stepped(self, tokens: int) -> None:
        """Add a step and this rank's tokens."""
        self.tokens += tokens
        self.steps += 1
        self.usage = self.usage.highest(memory(self.device))

    def report(self, measured: Measured) -> None:
        """Log the steps since the last report and begin to count anew."""
        seconds = time.perf_counter() - self.started
        tps = self.tokens / seconds
        tflops = tps * self.flops_per_token / 1e12
        mfu = 100 * tflops * 1e12 / self.peak_flops if self.peak_flops else None
        logger.info(self.line(measured, {"tps": tps, "tflops": tflops}, mfu))
        if self.board:
            values = self.scalars(measured, seconds)
            values |= {"throughput(tps)": tps, "tflops": tflops} | ({} if mfu is None else {"mfu(%)": mfu})
            for tag, value in values.items():
                self.board.add_scalar(tag, value, measured.step)
        self._restart()

    def line(self, measured: Measured, rates: dict[str, float], mfu: float | None) -> str:
        """One line in torchtitan's words. No model-flops utilisation without a known peak."""
        usage = self.usage
        parts = {
            "step": f"{measured.step:2}",
            "loss": f"{measured.loss:7.4f}",
            "grad_norm": f"{measured.grad_norm:7.4f}",
            "memory": f"{usage.reserved / GIB:5.2f}GiB({100 * usage.reserved / usage.capacity:.2f}%)",
            "tps": f"{round(rates['tps']):,}",
            "tflops": f"{rates['tflops']:,.2f}",
            "mfu": "N/A" if mfu is None else f"{mfu:.2f}%",
        }
        return "  ".join(self.colored(name, f"{name}: {text}") for name, text in parts.items())

    def colored(self, name: str, text: str) -> str:
        return f"\x1b[{COLORS[name]}m{text}\x1b[39m" if self.colors else text

    def scalars(self, measured: Measured, seconds: float) -> dict[str, float]:
        """TensorBoard's tags other than speed; times are means over the steps since the last report."""
        usage = self.usage
        return {
            "loss_metrics/global_avg_loss": measured.loss,
            "loss_metrics/global_max_loss": measured.max_loss,
            "grad_norm": measured.grad_norm,
            "n_tokens_seen": measured.tokens_seen,
            "lr": measured.lr,
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
        """Write out what TensorBoard's writer holds."""
        if self.board:
            self.board.close()


def board(config: JobConfig, world: World) -> "SummaryWriter | None":
    """TensorBoard's writer, on the ranks that have one."""
    metrics = config.metrics
    if not metrics.enable_tensorboard or (world.rank != 0 and not metrics.save_for_all_ranks):
        return None
    from torch.utils.tensorboard import SummaryWriter

    folder = Path(config.job.dump_folder, metrics.save_tb_folder, datetime.now().strftime("%Y%m%d-%H%M"))  # noqa: DTZ005
    return SummaryWriter(folder / f"rank_{world.rank}" if metrics.save_for_all_ranks else folder)


def memory(device: torch.device) -> Usage:
    """The highest use since the recorders reset it, which is once a step; on a CPU since the process began."""
    if device.type == "cpu":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return Usage(peak, peak, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    stats = torch.cuda.memory_stats(device)
    capacity = torch.cuda.get_device_properties(device).total_memory
    active, reserved = stats["active_bytes.all.peak"], stats["reserved_bytes.all.peak"]
    return Usage(active, reserved, capacity, stats["num_alloc_retries"], stats["num_ooms"])


def peak_flops(device: torch.device) -> float | None:
    """What the device can do a second in bf16, None if that is not known."""
    if device.type == "cpu":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAK_FLOPS.items() if part in name), None)


def start_logging() -> None:
    """Lines on standard output, with torchtitan's prefix but our name."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("[trainer] %(asctime)s - %(name)s - %(levelname)s - %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
