"""Train with each feature on the device: check that it runs and the loss falls, and measure the step time."""

import json
import math
import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.gpu.case import Case, Measured, Place, check, run_trainer
from trainer.config.converters import is_installed

STEPS, WARM_UP = 8, 2
CLOSE_TO_CPU = 1e-3
"""Relative difference of float32 losses of a device and a CPU, which add in another order."""

SMALL = (
    *("--model.flavor", "debugmodel", "--training.seq_len", "64", "--training.local_batch_size", "4"),
    *("--training.steps", str(STEPS), "--metrics.log_freq", "1", "--debug.seed", "7", "--optimizer.lr", "4e-3"),
    *("--lr_scheduler.warmup_steps", "2", "--training.mixed_precision_param", "float32"),
)
LARGE = ("--model.flavor", "debugmodel_large", "--training.seq_len", "2048", "--training.local_batch_size", "16")
FSDP = ("--training.enable_cpu_offload",)
"""The flag with which the trainer uses FSDP even on one rank: weights are kept in the CPU's memory."""
BF16 = ("--training.mixed_precision_param", "bfloat16")
CHECKPOINT = ("--checkpoint.enable", "--checkpoint.interval", "4")
MOE = ("--model.name", "llama4")

FEATURES: dict[str, tuple[str, ...]] = {
    "float32": (),
    "bfloat16": BF16,
    "offload": FSDP,
    "offload_bfloat16": (*FSDP, *BF16),
    "recompute_full": ("--activation_checkpoint.mode", "full"),
    "recompute_layers": ("--activation_checkpoint.mode", "selective"),
    "recompute_operations": (
        *("--activation_checkpoint.mode", "selective", "--activation_checkpoint.selective_ac_option", "op"),
    ),
    "accumulation": ("--training.global_batch_size", "16"),
    "deterministic": ("--debug.deterministic",),
    "optimizer_foreach": ("--optimizer.implementation", "foreach"),
    "optimizer_for_loop": ("--optimizer.implementation", "for-loop"),
    "compile": ("--compile.enable",),
    "compile_bfloat16": (*BF16, "--compile.enable"),
    "memory_budget": ("--compile.enable", "--activation_checkpoint.mode", "memory_budget"),
    "experts": MOE,
    "checkpoint": CHECKPOINT,
    "checkpoint_async": (*CHECKPOINT, "--checkpoint.async_mode", "async"),
    "checkpoint_pinned": (*CHECKPOINT, "--checkpoint.async_mode", "async_with_pinned_mem"),
    "validation": ("--validation.enable", "--validation.freq", "4", "--validation.steps", "2"),
    "all_recorders": (
        *("--profiling.enable_profiling", "--profiling.enable_memory_snapshot", "--profiling.profile_freq", "4"),
    ),
    "large_bfloat16": (*LARGE, *BF16),
}
RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
if is_installed("torchao"):
    for recipe in RECIPES:
        FEATURES[f"float8_{recipe}"] = ("--model.converters", "float8", "--float8.recipe_name", recipe)
ON_CUDA_ONLY = ("large_bfloat16", *(f"float8_{recipe}" for recipe in RECIPES))
SLOW = {"compile": 240, "compile_bfloat16": 240, "memory_budget": 240, "large_bfloat16": 180}


def cases() -> Iterator[Case]:
    """Yield a case for each feature."""
    for name, flags in FEATURES.items():
        run = partial(train, flags=flags)
        yield Case("training", name, run, limit_s=SLOW.get(name, 120), needs_cuda=name in ON_CUDA_ONLY)
    yield Case("training", "same_as_cpu", compare_with_cpu, needs_cuda=True)


def train(place: Place, flags: tuple[str, ...]) -> Measured:
    """Train some steps with a feature, and return their times, peak memory and losses."""
    run_trainer(place, place.folder / "run", *SMALL, *flags, limit_s=230)
    lines, manifest = step_lines(place.folder / "run"), run_file(place.folder / "run")
    losses = [float(str(line["loss"])) for line in lines]
    times = [int(str(line["dur_ns"])) / 1e9 for line in lines[WARM_UP:]]
    measured: Measured = {
        "device": manifest["device"],
        "backend": manifest["backend"],
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "first_step_s": round(int(str(lines[0]["dur_ns"])) / 1e9, 4),
        "median_step_s": round(statistics.median(times), 5),
        "peak_bytes": max(int(str(line["memory_bytes"])) for line in lines),
    }
    check(len(lines) == STEPS, f"{len(lines)} of {STEPS} steps are in the step log", measured)
    check(manifest["device"] == place.device, f"it ran on {manifest['device']}", measured)
    check(all(map(math.isfinite, losses)), "a loss is not finite", measured)
    check(losses[-1] < losses[0], "the loss did not fall", measured)
    place.keep(place.folder / "run" / "steps" / "rank_0.jsonl")
    return measured


def compare_with_cpu(place: Place) -> Measured:
    """Return the difference between the losses on the device and on a CPU, in float32."""
    losses = {}
    for device in ("cuda", "cpu"):
        folder = place.folder / device
        folder.mkdir()
        run_trainer(Place(device, folder, place.fixtures), folder, *SMALL)
        losses[device] = [float(str(line["loss"])) for line in step_lines(folder)]
    worst = max(abs(a / b - 1) for a, b in zip(losses["cuda"], losses["cpu"], strict=True))
    measured: Measured = {"largest_relative_difference": worst, **losses}
    check(worst <= CLOSE_TO_CPU, "the losses differ from those of a CPU", measured)
    return measured


def step_lines(folder: Path) -> list[dict[str, object]]:
    """Return the lines of rank 0's step log, without the header."""
    text = (folder / "steps" / "rank_0.jsonl").read_text(encoding="utf-8")
    return [line for line in map(json.loads, text.splitlines()) if "step" in line]


def run_file(folder: Path) -> dict[str, object]:
    """Return the content of run.json."""
    manifest: dict[str, object] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return manifest
