"""Suggest what to try against a category that fills the memory, and estimate how much that would free."""

from collections.abc import Mapping
from pathlib import Path

from analyzers.memory.findings.evidence import in_words, largest
from analyzers.memory.model import Device, Remedy, Saving
from analyzers.memory.reading.job import job_of
from analyzers.words import size

# Settings are those of our trainer, which are torchtitan's; where plain PyTorch has a name of its own, it is given too.
SHARD = "with FSDP; in torchtitan parallelism.data_parallel_shard_degree"
BATCH, SEQUENCE = "in torchtitan training.local_batch_size", "training.seq_len"
ADVICE = {
    "parameters": f"Shard the parameters over more ranks ({SHARD}), or use a smaller model",
    "gradients": f"Shard the gradients over more ranks ({SHARD}), or free them with"
    " optimizer.zero_grad(set_to_none=True)",
    "optimizer_state": f"Shard the optimizer state over more ranks ({SHARD}), or use an optimizer with less state",
    "activations": "Turn on activation checkpointing (torch.utils.checkpoint; in torchtitan"
    f' activation_checkpoint.mode = "full"), or use a smaller batch ({BATCH}) or sequence ({SEQUENCE})',
    "inputs": f"Use a smaller batch ({BATCH}), or move it to the device later",
    "temporary": f"Use a smaller batch ({BATCH}) or sequence ({SEQUENCE}), or compute the largest operation in pieces",
    "communication": "Gather fewer layers ahead (set_modules_to_forward_prefetch in FSDP2, limit_all_gathers in FSDP1)",
    "workspace": "Set CUBLAS_WORKSPACE_CONFIG to a smaller workspace, such as :16:8",
    "unknown": "Look at the lines that allocated most of the memory: run `workbench inspect` on this file with"
    " `--breakdown`",
}
_ADVICE_WHEN_RECOMPUTING = {
    "selective": 'Recompute all activations (in torchtitan activation_checkpoint.mode = "full"), or use a smaller batch'
    f" ({BATCH}) or sequence ({SEQUENCE})",
    "full": f"Use a smaller batch ({BATCH}) or sequence ({SEQUENCE}): all activations are recomputed already",
}
"""{mode in run.json: advice against activations}, for jobs that already recompute some or all of them."""
_SHARDABLE = ("parameters", "gradients", "optimizer_state")
_HELPFUL = {
    "activations": {
        Remedy.ACTIVATION_CHECKPOINTING: "Checkpointing",
        Remedy.HALF_BATCH: "Half the batch or the sequence",
    },
    "inputs": {Remedy.HALF_BATCH: "Half the batch"},
    "temporary": {Remedy.HALF_BATCH: "Half the batch or the sequence"},
}
"""{category: {remedy that helps against it: the beginning of a sentence about its effect}}."""


_UNKNOWN_WHEN_FAILED = (
    f"Use a smaller batch ({BATCH}) or sequence ({SEQUENCE}). To see which lines need most of the memory, run"
    " `workbench inspect` on this file with `--breakdown`."
)


def remedy(device: Device, categories: Mapping[str, int], *, failed: bool = False) -> str:
    """Return advice against the largest of these categories, and how much memory it would free, as sentences.

    `failed`: a request failed, so that something has to become smaller even if nothing is known of the memory.
    """
    category, total = largest(categories)
    if failed and category == "unknown":
        return _UNKNOWN_WHEN_FAILED
    sentences = [f"{advice(device, category)}."]
    for helpful, beginning in _HELPFUL.get(category, {}).items():
        if saving := saving_by(device, helpful):
            amount = f"{size(saving.frees_bytes)} of {size(saving.of_bytes)}"
            sentences.append(f"{beginning} would free about {amount} ({saving.model}).")
    if category in _SHARDABLE:
        amount = f"{size(total / 2)} of {size(total)} of {in_words(category)}"
        sentences.append(f"Sharding over twice as many ranks would free {amount} on each rank.")
    return " ".join(sentences)


def advice(device: Device, category: str) -> str:
    """Return what helps against a category that fills the memory, without a full stop.

    If the job already recomputes activations, the advice against activations takes that into account.
    """
    job = job_of(Path(device.path)) if category == "activations" else None
    return _ADVICE_WHEN_RECOMPUTING.get(job.checkpointing, ADVICE[category]) if job else ADVICE[category]


def saving_by(device: Device, wanted: Remedy) -> Saving | None:
    """Return the estimated saving of one remedy; None if the snapshot does not allow an estimate."""
    return next((saving for saving in device.savings if saving.remedy is wanted), None)
