"""What to try against most of one category, and what that would free."""

from pathlib import Path

from analyzers.memory.model import Device
from analyzers.memory.reading.job import job_of
from analyzers.words import size

REMEDY = {
    "parameters": "shard the parameters over more ranks (parallelism.data_parallel_shard_degree) or use a smaller one",
    "gradients": "shard the gradients over more ranks, or free them with zero_grad(set_to_none=True)",
    "optimizer_state": "shard the optimizer state over more ranks, or choose an optimizer with less state",
    "activations": "turn on activation checkpointing, or make the batch or the sequence smaller",
    "inputs": "make the batch smaller, or move it to the device later",
    "temporary": "make the batch or the sequence smaller, or compute the largest operation in pieces",
    "communication": "limit how many layers are gathered ahead",
    "workspace": "set CUBLAS_WORKSPACE_CONFIG to a smaller workspace",
    "unknown": "look at the largest stacks at the peak",
}
RECOMPUTING = {
    "selective": "recompute all activations (activation_checkpoint.mode = full), or make the batch or sequence smaller",
    "full": "make the batch or the sequence smaller: all activations are recomputed already",
}
"""Against activations, where run.json says that some are recomputed."""
SHARDED = ("parameters", "gradients", "optimizer_state")
ESTIMATED = {
    "activations": {"activation_checkpointing": "Checkpointing", "half_batch": "Half the batch or the sequence"},
    "inputs": {"half_batch": "Half the batch"},
    "temporary": {"half_batch": "Half the batch or the sequence"},
}
"""Category -> estimates of what helps against it, and how a sentence about each begins."""


def remedy(device: Device, categories: dict[str, int]) -> str:
    """What to try where `categories` fill the memory."""
    kind = max(categories, key=lambda name: categories[name])
    held = categories[kind]
    told = [f"{begin}{effect}." for what, begin in ESTIMATED.get(kind, {}).items() if (effect := would(device, what))]
    if kind in SHARDED:
        told.append(f"Shared by twice as many ranks, {size(held / 2)} of {size(held)} would be freed on each.")
    return " ".join([f"{advice(device, kind).capitalize()}.", *told])


def advice(device: Device, kind: str) -> str:
    job = job_of(Path(device.path)) if kind == "activations" else None
    return RECOMPUTING.get(job.checkpointing, REMEDY[kind]) if job else REMEDY[kind]


def would(device: Device, what: str) -> str:
    """` would make about 2.0 GiB of 3.0 GiB usable (the model)`; empty where nothing can be told."""
    known = next((estimate for estimate in device.estimates if estimate.what == what), None)
    if known is None:
        return ""
    return f" would make about {size(known.frees_bytes)} of {size(known.of_bytes)} usable ({known.model})"
