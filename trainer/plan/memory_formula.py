"""A quick formula for a rank's peak memory; the search measures only candidates that may fit according to it.

The error of the formula is some ten per cent. It is nearly equal for candidates that differ only in the batch size (a
family). So the search corrects it with the measured peak of another candidate of the same family.
"""

from trainer.plan.candidates import Candidate
from trainer.plan.model_size import ModelSize

_STATE_COPIES = 4
"""The number of values that training keeps for each weight: the weight, its gradient, and the two moments of Adam."""
_FLOAT32_BYTES = 4


def state_bytes(model: ModelSize, candidate: Candidate) -> int:
    """Return the bytes of weights, gradients and optimizer state on the rank with the most of them."""
    width = 2 if candidate.dtype == "bfloat16" else _FLOAT32_BYTES
    # The first and the last stage have the embedding or the output layer beside their layers.
    ends = model.head if candidate.pipeline > 1 else model.ends
    held = model.in_layers / candidate.pipeline + ends
    shards = candidate.shard * candidate.context * candidate.tensor
    return round(_STATE_COPIES * width * held / shards)


def peak_bytes(model: ModelSize, candidate: Candidate, microbatch: int) -> int:
    """Return the approximate peak memory in bytes of the rank that needs the most.

    `microbatch` is the number of sequences in a microbatch of a pipeline. Activations are counted as in
    `analyzers.memory.job.Job`, by the formulas of Korthikanti et al. 2022 (arXiv:2205.05198).
    """
    state = 0 if candidate.offload else state_bytes(model, candidate)
    return round(state + _gathered_bytes(model, candidate) + _activation_bytes(model, candidate, microbatch))


def _gathered_bytes(model: ModelSize, candidate: Candidate) -> float:
    """Return the most bytes of gathered weights, and of their gradients, that FSDP holds at any time.

    Without a pipeline, these are the weights of two layers and the gradients of one layer; or the output layer and its
    gradients, if that is more. In a pipeline, they are all weights of the stage. Without FSDP, the result is the size
    of DDP's gradient buckets.
    """
    layer, width = model.in_layers / model.layers / candidate.tensor, model.compute_bytes
    if candidate.shard * candidate.context == 1:
        return _FLOAT32_BYTES * (model.in_layers + model.head) / candidate.tensor if candidate.replicate > 1 else 0.0
    end = model.head / candidate.tensor
    if candidate.pipeline > 1:
        # All microbatches use the gathered weights and add to the gradients before these are reduced.
        return 2 * width * (model.in_layers / candidate.pipeline / candidate.tensor + end)
    return max(2 * layer * width + layer * (width + _FLOAT32_BYTES), end * (2 * width + _FLOAT32_BYTES))


def _activation_bytes(model: ModelSize, candidate: Candidate, microbatch: int) -> float:
    """Return the bytes of activations: kept for the backward pass, recomputed in one layer, and the logits.

    `microbatch` is the number of sequences in a microbatch of a pipeline.
    """
    sequences = min(microbatch, candidate.batch) if candidate.pipeline > 1 else candidate.batch
    tokens = sequences * model.seq_len / candidate.context
    in_flight = min(candidate.pipeline, candidate.batch // sequences)
    layers = model.layers / candidate.pipeline
    whole, kept = _kept_values(model, "none"), _kept_values(model, candidate.mode)
    if candidate.mode == "selective" and candidate.option.isdecimal():
        kept = whole - (whole - _kept_values(model, "full")) / int(candidate.option)
    if candidate.tensor > 1 and candidate.mode != "full":
        # Sequence parallelism gathers all tokens before the products of attention and of the feed-forward layer.
        kept += 2 * model.dim * model.compute_bytes * candidate.tensor
    recomputed = 0.0 if candidate.mode == "none" else whole
    logits = model.vocab * (model.compute_bytes + 2 * _FLOAT32_BYTES)
    return tokens / candidate.tensor * (in_flight * layers * kept + recomputed + logits)


def _kept_values(model: ModelSize, mode: str) -> float:
    """Return the bytes per token that one layer keeps for the backward pass; `mode` is the checkpointing mode."""
    values = {
        "selective": 3 * model.dim + 2 * model.attention_dim + model.kv_dim + 2 * model.hidden_dim,
        "full": model.dim,
    }.get(mode, model.activations)
    return values * model.compute_bytes + (8 + 4 * model.heads if mode == "none" else 0)
