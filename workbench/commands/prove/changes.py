"""Choose the changes of our trainer's settings to try after a failed allocation, in the order of the advice."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from analyzers.memory.model import OomPattern
from analyzers.words import figures, size
from workbench.commands.prove.recorded_run import RecordedRun
from workbench.proof_data import Settings

BATCH, _EVAL_BATCH = "training.local_batch_size", "validation.local_batch_size"
FULL: Settings = {"activation_checkpoint.mode": "full"}
STATE = ("parameters", "gradients", "optimizer_state")
_LARGER_INPUTS = 1.5
_HALVINGS = 10
_BATCH_TENSORS, _TOKEN_BYTES = 2, 8
"""The number of tensors in a batch (tokens and labels), and the bytes of one value of them (int64)."""


@dataclass(frozen=True)
class NoChange:
    """The reason why no change of settings is tried (`reason`, a clause), and what to do instead (`advice`)."""

    reason: str
    advice: str


def reason_against_settings(run: RecordedRun) -> NoChange | None:
    """Return the reason why no setting can prevent the failed allocation; None if a setting may prevent it."""
    oom = run.device.oom
    if oom is None:
        return None
    if oom.pattern is OomPattern.GROWTH:
        since = f" from step {oom.since_step} on" if oom.since_step is not None else ""
        return NoChange(
            f"memory grew step by step{since}, and with smaller settings the job runs out of it later",
            "Find what keeps the tensors: `workbench inspect` names their lines.",
        )
    usual, now = oom.usual_inputs_bytes, oom.categories.get("inputs", 0)
    if oom.pattern is OomPattern.SPIKE and usual and now >= _LARGER_INPUTS * usual:
        return NoChange(
            f"the inputs of the failing step were {figures(now / usual)} times as large as before ({size(now)}, before"
            f" {size(usual)}), and no setting asks for such a batch",
            "Check the batch of the failing step.",
        )
    return None


def reason_outside_settings(run: RecordedRun) -> NoChange:
    """Return why an allocation failed although the settings of the run should fit into memory, and what to do.

    They should fit, because the estimated peak is below the limit (`workbench estimate`). So the reason must be
    something else, such as a larger batch.
    """
    config, oom = run.manifest["config"], run.device.oom
    inputs = oom.categories.get("inputs", 0) if oom else 0
    rows = config["validation" if _is_validation(run) else "training"]["local_batch_size"]
    usual = _BATCH_TENSORS * _TOKEN_BYTES * rows * config["training"]["seq_len"]
    if inputs >= _LARGER_INPUTS * usual:
        return NoChange(
            f"the inputs were {figures(inputs / usual)} times as large as the settings say ({size(inputs)})",
            "Check the batch of the failing step.",
        )
    return NoChange(
        "one step with these settings fits, so that something else than the settings filled the memory",
        "Look at the largest categories and lines: `workbench inspect` shows them.",
    )


def _is_validation(run: RecordedRun) -> bool:
    """Return whether the allocation failed while the validation loss was computed."""
    oom = run.device.oom
    return bool(oom and any("validation.py" in frame for frame in oom.frames))


def changes(run: RecordedRun) -> Iterator[Settings]:
    """Yield the changes of settings to try, as {key: new value}; changes that the finding advises come first."""
    config = run.manifest["config"]
    if _is_validation(run):
        for batch in halved(config["validation"]["local_batch_size"]):
            yield {_EVAL_BATCH: batch}
        return
    oom = run.device.oom
    categories = oom.categories if oom else run.device.categories
    of_state = max(categories, key=lambda name: categories[name]) in STATE
    groups = [list(_against_activations(config, run)), list(_against_state(config, run))]
    # What fills most of the memory is reduced first.
    yield from (change for group in (reversed(groups) if of_state else groups) for change in group)
    smallest = _smallest_batch(config, run) | checkpointing(config)
    for change in _against_state(config, run):
        yield smallest | change
    for length in halved(config["training"]["seq_len"]):
        yield smallest | {"training.seq_len": length}


def _against_activations(config: Mapping[str, Any], run: RecordedRun) -> Iterator[Settings]:
    """Yield changes that reduce activations: recomputation, smaller batches with accumulation, and both."""
    recompute, batches = checkpointing(config), list(_smaller_batches(config, run))
    yield from [recompute] if recompute else []
    yield from batches
    yield from (recompute | batch for batch in batches) if recompute else ()


def _against_state(config: Mapping[str, Any], run: RecordedRun) -> Iterator[Settings]:
    """Yield changes that reduce the memory of parameters, gradients and optimizer state."""
    mesh = run.manifest.get("mesh") or {}
    copies = mesh.get("dp_replicate", 1)
    if copies > 1:
        yield {
            "parallelism.data_parallel_replicate_degree": 1,
            "parallelism.data_parallel_shard_degree": copies * mesh.get("dp_shard", 1),
        }
    if config["training"]["dtype"] == "float32":
        change: Settings = {"training.dtype": "bfloat16"}
        # Weights in bfloat16 compute in float32 only with FSDP; without it the trainer refuses them.
        if config["training"].get("mixed_precision_param") == "float32":
            change["training.mixed_precision_param"] = "bfloat16"
        yield change


def checkpointing(config: Mapping[str, Any]) -> Settings:
    """Return the change to recompute all activations; empty if the run already does so."""
    return {} if config["activation_checkpoint"]["mode"] == "full" else dict(FULL)


def _smaller_batches(config: Mapping[str, Any], run: RecordedRun) -> Iterator[Settings]:
    """Yield changes to a smaller local batch, with more forward passes that accumulate gradients.

    Each change keeps the global batch (the number of sequences in a step over all ranks).
    """
    batch = config["training"]["local_batch_size"]
    for smaller in halved(batch):
        yield {BATCH: smaller, "training.global_batch_size": _sequences_a_step(config, run)}


def _smallest_batch(config: Mapping[str, Any], run: RecordedRun) -> Settings:
    """Return the change to the smallest local batch (sequences per forward pass); empty if it cannot be halved."""
    return ([{}, *_smaller_batches(config, run)])[-1]


def _sequences_a_step(config: Mapping[str, Any], run: RecordedRun) -> int:
    """Return the global batch: the number of sequences in one step over all ranks."""
    asked, mesh = config["training"]["global_batch_size"], run.manifest.get("mesh") or {}
    copies = mesh.get("dp_replicate", 1) * mesh.get("dp_shard", 1)
    return int(asked) if asked > 0 else int(config["training"]["local_batch_size"]) * copies


def halved(number: int) -> Iterator[int]:
    """Yield a half of a number, a quarter and so on, as long as the result is a whole number: 12 gives 6 and 3."""
    parts = (number // 2**power for power in range(1, _HALVINGS) if number % 2**power == 0)
    yield from takewhile(lambda part: part > 0, parts)
