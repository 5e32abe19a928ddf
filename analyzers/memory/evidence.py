"""Make the parts that several sentences of this package share: evidence, ranks, and the names of categories."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from analyzers.memory.job import job_of
from analyzers.memory.model import Device, Remedy, Saving
from analyzers.memory.stacks import call_site
from analyzers.report import Evidence
from analyzers.words import rank_names, size

COMMON_POOL = "0.0"
STEPS_INFERRED = (
    "The snapshot does not say where a step begins: workbench derived the steps from call stacks that repeat."
)
_CATEGORY_WORDS = {
    "optimizer_state": "optimizer state",
    "temporary": "temporary tensors",
    "communication": "communication buffers",
    "workspace": "library workspaces",
    "unknown": "memory of unknown category",
}

FORWARD_ONLY = " No stack shows a backward pass, so they may be evaluation or inference."
"""The sentence about inferred steps in which nothing shows that they train."""


def in_words(category: str) -> str:
    """Return a category's name as a noun for a sentence: `optimizer state` for `optimizer_state`."""
    return _CATEGORY_WORDS.get(category, category)


def largest(categories: Mapping[str, int]) -> tuple[str, int]:
    return max(categories.items(), key=lambda item: item[1])


def rank_subject(ranks: Sequence[int]) -> str:
    return rank_names(ranks) if ranks else "the process"


def ranks_of(device: Device) -> list[int]:
    return [] if device.rank is None else [device.rank]


def fact(device: Device, text: str, line: str = "") -> Evidence:
    return Evidence(text=text, source=device.path, line=line)


def innermost(frames: Sequence[str], unknown: str = "") -> str:
    return call_site(frames[0]) if frames else unknown


def about(ratio: float) -> str:
    rounded = float(f"{ratio:.2g}")
    return f"{rounded:.0f}" if rounded >= 10 else f"{rounded:g}"


def pool_words(pool: str) -> str:
    """Return the name of a memory pool in words: `private pool (3, 0)` for `3.0`, and the default pool for `0.0`."""
    if pool == COMMON_POOL:
        return "default pool"
    first, separator, second = pool.partition(".")
    return f"private pool ({first}, {second})" if separator else "unknown pool"


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
    return next((saving for saving in device.savings if saving.remedy is wanted), None)
