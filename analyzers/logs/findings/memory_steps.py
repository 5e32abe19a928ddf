"""Write the next step where device memory ran out: what the sizes and the traceback in the log show comes first."""

import re

from analyzers.case.facts import LogClass, Reason
from analyzers.case.hypothesis import Cause
from analyzers.logs.findings.wording import first_with
from analyzers.logs.reading.line_patterns.pattern import size_in_bytes
from analyzers.words import EXPANDABLE_SEGMENTS, EXPANDABLE_SEGMENTS_ON_AMD, LOAD_ON_HOST, size

FRAME = re.compile(r'File ".{1,300}", line \d+, in (\S+)(?:\n[^\n]{0,40}? {2,}(\S[^\n]*))?')
"""Matches a frame of a traceback: its function, and its source line if there is one."""
LOSS = re.compile(r"^(cross_entropy|nll_loss|log_softmax)$")
_LOGITS = re.compile(r"(?i)\blogits\b|lm_head|output_layer|cross_entropy|log_softmax")
_LOSS_IN_PIECES = (
    "compute the loss in pieces of the sequence, or by a kernel that fuses it with the output layer (such as Liger's"
    " fused_linear_cross_entropy{setting}): then the logits of all tokens are never in memory at once. Otherwise "
)
_IN_TRANSFORMERS = "; in transformers TrainingArguments(use_liger_kernel=True)"
_LARGE_SHARE, _UNUSED_SHARE = 0.05, 0.1
"""A request of the first share of the device is large by itself; reserved memory of which the second share is not in
use is fragmented, or else nearly full."""
EVALUATION = re.compile(r"(?i)^(?!.*train).*(^|_)(eval|evaluate|evaluation|val|valid|validate|validation)(_|$)")
_SAVING = re.compile(r"(?i)^(?!.*load).*(state_dict|full_tensor|(save|write|gather)_\w*(checkpoint|ckpt|model|state))")
_LOADING = re.compile(r"torch/serialization\.py\", line \d+, in ")
_SITUATIONS = (
    (
        re.compile(r"^_multi_tensor_\w+$|_foreach_"),
        (
            "construct the optimizer with fused=True, or with foreach=False: its multi-tensor step makes copies of all"
            " parameters at once. If that is not enough, shard the optimizer state over more ranks"
        ),
    ),
    (
        re.compile(r"^_init_group$"),
        (
            "make room for the optimizer's state, which the first step allocates after its forward and backward pass:"
            " shard it over more ranks (FSDP), use an optimizer with less state, or a smaller model"
        ),
    ),
    (
        _SAVING,
        (
            "do not gather or copy the state on the device: save shards with torch.distributed.checkpoint, or gather"
            " with cpu_offload=True"
        ),
    ),
    (
        EVALUATION,
        "check that the evaluation runs under torch.no_grad() or torch.inference_mode(), and make its batch smaller",
    ),
)
"""(pattern of a function in the traceback, advice): what the program was doing that a step of training does not."""
_FIND_RANK = "find out which rank failed, from logs of each rank (`torchrun --log-dir logs`, `srun --label`). Then "


def for_memory(cause: Cause) -> str:
    """Return advice on using less device memory."""
    if particular := _particular_memory_advice(cause):
        return particular
    setting = _IN_TRANSFORMERS if "/transformers/" in cause.lead.excerpt else ""
    first = _LOSS_IN_PIECES.format(setting=setting) if _is_for_loss(cause) else ""
    return (
        f"{first}use a smaller batch or sequence, recompute activations, or shard over more ranks. To see what fills"
        " the memory, record a memory snapshot (`torch.cuda.memory._record_memory_history()`)"
    )


def _is_for_loss(cause: Cause) -> bool:
    """Return whether the failed request was for logits or for what a loss makes of them, and large.

    Without sizes, a loss function at the end of the traceback is enough.
    """
    facts, calls = first_with(cause, "requested_bytes").facts, FRAME.findall(cause.lead.excerpt)
    is_large = (facts.requested_bytes or 0) >= _LARGE_SHARE * (facts.total_bytes or 0)
    if any(LOSS.search(function) for function, _ in calls):
        return is_large or facts.requested_bytes is None
    return bool(calls and facts.total_bytes) and is_large and bool(_LOGITS.search(calls[-1][1]))


def _situation_advice(cause: Cause) -> str:
    """Return advice on what the program was doing beside forward and backward passes; empty if it was doing nothing."""
    if _LOADING.search(cause.lead.excerpt):
        return f"load the checkpoint into host memory with {LOAD_ON_HOST}"
    for function, source in reversed(FRAME.findall(cause.lead.excerpt)):
        for pattern, advice in _SITUATIONS:
            if pattern.search(function) or (pattern is _SITUATIONS[0][0] and pattern.search(source)):
                return advice
    return ""


def for_one_rank(cause: Cause, ranks: int) -> str:
    """Return what to look at first where one of several ranks ran out of memory; empty if that is not what happened.

    `ranks` is the number of ranks, as far as the logs show it: that of a rank shows that all lower ones exist.
    """
    if cause.kind is not LogClass.OOM or len(cause.ranks) != 1 or max(ranks, cause.ranks[0] + 1) < 2:
        return ""
    if _particular_memory_advice(cause) or _is_for_loss(cause):
        return ""
    return (
        f"first compare rank {cause.ranks[0]} with the other ranks: the samples and lengths of its batch, and what only"
        " it does (evaluation, a checkpoint, logging, more layers of a pipeline). If they are nearly as full: "
    )


def _particular_memory_advice(cause: Cause) -> str:
    """Return the advice on a failed allocation whose reason the logs show; empty if they do not show it."""
    facts = first_with(cause, "requested_bytes").facts
    if cause.reason in (Reason.DRIVER_MEMORY, Reason.LIBRARY_MEMORY):
        return _outside_advice(cause)
    if cause.reason is Reason.NCCL_BUFFERS:
        return f"leave memory to NCCL: a smaller batch, {LIMIT}, or smaller buffers (NCCL_BUFFSIZE=1048576)"
    others, requested = sum(facts.other_processes), facts.requested_bytes or 0
    if others and others + (facts.free_bytes or 0) >= requested:
        return f"end the other processes on the device, which have {size(others)} (`nvidia-smi`)"
    return _allocator_advice(cause) or _situation_advice(cause)


def _allocator_advice(cause: Cause) -> str:
    """Return advice on what PyTorch's message says of its allocator: a limit, private pools, fragmented memory."""
    facts = first_with(cause, "requested_bytes").facts
    requested = facts.requested_bytes or 0
    if limited := _ALLOWED.search(cause.lead.message):
        return (
            f"raise or remove the limit of this process: it may use {limited[1]} of the device (its memory fraction, as"
            " set by `torch.cuda.memory.set_per_process_memory_fraction` or per_process_memory_fraction)"
        )
    if _is_in_private_pools(cause):
        return (
            "capture all CUDA graphs into one memory pool (torch.cuda.graph(..., pool=...)), or fewer of them: each has"
            " a private pool, whose memory no other request can use"
        )
    unused, reserved = facts.unallocated_bytes or 0, (facts.unallocated_bytes or 0) + (facts.allocated_bytes or 0)
    if unused > requested > 0 and unused >= _UNUSED_SHARE * reserved:
        return (
            f"set {EXPANDABLE_SEGMENTS_ON_AMD if HIP in cause.lead.message else EXPANDABLE_SEGMENTS}: the allocator had"
            f" {size(unused)} reserved and unused, more than the {size(requested)} requested, but in pieces that were"
            " too small"
        )
    return ""


_ALLOWED = re.compile(r"of which \S+ \w+ is free[.;] (\d+\.\d+ [KMGT]iB) allowed;")
_PRIVATE_POOLS = re.compile(r"with (\d+\.\d+) (bytes|[KMGT]iB) allocated in private pools")
_PRIVATE_SHARE = 0.25
"""The share of the allocated memory from which on private pools explain a failure."""


def _is_in_private_pools(cause: Cause) -> bool:
    """Return whether much of the allocated memory is in private pools, as PyTorch's message says."""
    allocated = first_with(cause, "allocated_bytes").facts.allocated_bytes
    pools = _PRIVATE_POOLS.search(cause.lead.message)
    held = size_in_bytes(pools[1], pools[2]) if pools else None
    return bool(held and allocated and held >= _PRIVATE_SHARE * allocated)


LIMIT = "`torch.cuda.memory.set_per_process_memory_fraction(0.95)`"
HIP = "HIP out of memory"


def _outside_advice(cause: Cause) -> str:
    """Return advice on a failed request of the driver or of a library, which get what the allocator leaves over."""
    find = "" if cause.ranks else _FIND_RANK
    look = f"{find}check with `nvidia-smi` on its node whether another process holds the GPU."
    if cause.reason is Reason.LIBRARY_MEMORY:
        return (
            f"{look} If none does, PyTorch's own tensors and cache fill it: leave memory to the library with a smaller"
            f" batch, or with {LIMIT}"
        )
    return (
        f"{look} If none does, but memory is in use or the error comes back there, the GPU may be faulty: exclude that"
        " node"
    )
