"""Memory that ran out, on a device or on the host."""

import re

from analyzers.case.facts import LogClass, Reason
from analyzers.case.hypothesis import Case
from analyzers.case.wording import at_step, first_with, place, quoted, who
from analyzers.failures.entry import Failure
from analyzers.words import (
    EXPANDABLE_SEGMENTS,
    EXPANDABLE_SEGMENTS_ON_AMD,
    LOAD_ON_HOST,
    rank_names,
    size,
    size_in_bytes,
)


def oom(case: Case) -> str:
    """Return the title for a device that ran out of memory, with the sizes that the allocator reported."""
    lead = first_with(case, "requested_bytes")
    facts = lead.facts
    if case.reason is Reason.NCCL_BUFFERS:
        wanted = f" ({size(facts.requested_bytes)})" if facts.requested_bytes else ""
        device = f"device {facts.device}" if facts.device is not None else "a device"
        return f"{device} has no memory left for NCCL's buffers{wanted}{at_step(lead)}"
    if case.reason in (Reason.DRIVER_MEMORY, Reason.LIBRARY_MEMORY):
        return (
            f"a CUDA call outside PyTorch's caching allocator ran out of device memory{place(lead)} on"
            f" {who(case.ranks)}: {quoted(lead)}"
        )
    wanted = f": tried to allocate {size(facts.requested_bytes)}" if facts.requested_bytes is not None else ""
    free = f", {size(facts.free_bytes)} free of {size(facts.total_bytes)}" if facts.free_bytes is not None else ""
    return f"{who(case.ranks)} ran out of device memory{at_step(lead)}{place(lead)}{wanted}{free}"


def host_oom(case: Case) -> str:
    """Return the title for a host that ran out of memory."""
    lead = case.lead
    if case.reason is Reason.HOST_ALLOCATOR:
        wanted = f": tried to allocate {size(lead.facts.requested_bytes)}" if lead.facts.requested_bytes else ""
        return f"{who(case.ranks)} ran out of host memory{wanted}{place(lead)}{at_step(lead)}"
    hosts = sorted({e.facts.host for e in case.failure.events if e.facts.host})
    where = f" on {', '.join(hosts)}" if hosts else ""
    used = next((e.facts.process_bytes for e in case.failure.events if e.facts.process_bytes), None)
    whom = f"{rank_names(case.ranks)} (SIGKILL)" if case.ranks else "a process of the job"
    held = f", which used {size(used)}" if used else ""
    return f"host memory ran out{where}: the OOM killer ended {whom}{held}{at_step(lead)}"


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


def for_memory(case: Case) -> str:
    """Return advice on using less device memory."""
    if particular := _particular_memory_advice(case):
        return particular
    setting = _IN_TRANSFORMERS if "/transformers/" in case.lead.excerpt else ""
    first = _LOSS_IN_PIECES.format(setting=setting) if _is_for_loss(case) else ""
    return (
        f"{first}use a smaller batch or sequence, recompute activations, or shard over more ranks. To see what fills"
        " the memory, record a memory snapshot (`torch.cuda.memory._record_memory_history()`)"
    )


def _is_for_loss(case: Case) -> bool:
    """Return whether the failed request was for logits or for what a loss makes of them, and large.

    Without sizes, a loss function at the end of the traceback is enough.
    """
    facts, calls = first_with(case, "requested_bytes").facts, FRAME.findall(case.lead.excerpt)
    is_large = (facts.requested_bytes or 0) >= _LARGE_SHARE * (facts.total_bytes or 0)
    if any(LOSS.search(function) for function, _ in calls):
        return is_large or facts.requested_bytes is None
    return bool(calls and facts.total_bytes) and is_large and bool(_LOGITS.search(calls[-1][1]))


def _situation_advice(case: Case) -> str:
    """Return advice on what the program was doing beside forward and backward passes; empty if it was doing nothing."""
    if _LOADING.search(case.lead.excerpt):
        return f"load the checkpoint into host memory with {LOAD_ON_HOST}"
    for function, source in reversed(FRAME.findall(case.lead.excerpt)):
        for pattern, advice in _SITUATIONS:
            if pattern.search(function) or (pattern is _SITUATIONS[0][0] and pattern.search(source)):
                return advice
    return ""


def for_one_rank(case: Case) -> str:
    """Return what to look at first where one of several ranks ran out of memory; empty if that is not what happened.

    That of a rank shows that all lower ones exist.
    """
    if (
        case.kind is not LogClass.OOM
        or len(case.ranks) != 1
        or max(case.world_size or len(case.logs), case.ranks[0] + 1) < 2
    ):
        return ""
    if _particular_memory_advice(case) or _is_for_loss(case):
        return ""
    return (
        f"first compare rank {case.ranks[0]} with the other ranks: the samples and lengths of its batch, and what only"
        " it does (evaluation, a checkpoint, logging, more layers of a pipeline). If they are nearly as full: "
    )


def _particular_memory_advice(case: Case) -> str:
    """Return the advice on a failed allocation whose reason the logs show; empty if they do not show it."""
    facts = first_with(case, "requested_bytes").facts
    if case.reason in (Reason.DRIVER_MEMORY, Reason.LIBRARY_MEMORY):
        return _outside_advice(case)
    if case.reason is Reason.NCCL_BUFFERS:
        return f"leave memory to NCCL: a smaller batch, {LIMIT}, or smaller buffers (NCCL_BUFFSIZE=1048576)"
    others, requested = sum(facts.other_processes), facts.requested_bytes or 0
    if others and others + (facts.free_bytes or 0) >= requested:
        return f"end the other processes on the device, which have {size(others)} (`nvidia-smi`)"
    return _allocator_advice(case) or _situation_advice(case)


def _allocator_advice(case: Case) -> str:
    """Return advice on what PyTorch's message says of its allocator: a limit, private pools, fragmented memory."""
    facts = first_with(case, "requested_bytes").facts
    requested = facts.requested_bytes or 0
    if limited := _ALLOWED.search(case.lead.message):
        return (
            f"raise or remove the limit of this process: it may use {limited[1]} of the device (its memory fraction, as"
            " set by `torch.cuda.memory.set_per_process_memory_fraction` or per_process_memory_fraction)"
        )
    if _is_in_private_pools(case):
        return (
            "capture all CUDA graphs into one memory pool (torch.cuda.graph(..., pool=...)), or fewer of them: each has"
            " a private pool, whose memory no other request can use"
        )
    unused, reserved = facts.unallocated_bytes or 0, (facts.unallocated_bytes or 0) + (facts.allocated_bytes or 0)
    if unused > requested > 0 and unused >= _UNUSED_SHARE * reserved:
        return (
            f"set {EXPANDABLE_SEGMENTS_ON_AMD if HIP in case.lead.message else EXPANDABLE_SEGMENTS}: the allocator had"
            f" {size(unused)} reserved and unused, more than the {size(requested)} requested, but in pieces that were"
            " too small"
        )
    return ""


_ALLOWED = re.compile(r"of which \S+ \w+ is free[.;] (\d+\.\d+ [KMGT]iB) allowed;")


_PRIVATE_POOLS = re.compile(r"with (\d+\.\d+) (bytes|[KMGT]iB) allocated in private pools")


_PRIVATE_SHARE = 0.25
"""The share of the allocated memory from which on private pools explain a failure."""


def _is_in_private_pools(case: Case) -> bool:
    """Return whether much of the allocated memory is in private pools, as PyTorch's message says."""
    allocated = first_with(case, "allocated_bytes").facts.allocated_bytes
    pools = _PRIVATE_POOLS.search(case.lead.message)
    held = size_in_bytes(pools[1], pools[2]) if pools else None
    return bool(held and allocated and held >= _PRIVATE_SHARE * allocated)


LIMIT = "`torch.cuda.memory.set_per_process_memory_fraction(0.95)`"


HIP = "HIP out of memory"


def _outside_advice(case: Case) -> str:
    """Return advice on a failed request of the driver or of a library, which get what the allocator leaves over."""
    find = "" if case.ranks else _FIND_RANK
    look = f"{find}check with `nvidia-smi` on its node whether another process holds the GPU."
    if case.reason is Reason.LIBRARY_MEMORY:
        return (
            f"{look} If none does, PyTorch's own tensors and cache fill it: leave memory to the library with a smaller"
            f" batch, or with {LIMIT}"
        )
    return (
        f"{look} If none does, but memory is in use or the error comes back there, the GPU may be faulty: exclude that"
        " node"
    )


_ABSURD_BYTES = 64 << 30
"""A request for this much host memory or more has probably a wrong size; it is hardly the last of many requests."""


def _for_host_memory(case: Case) -> str:
    """Return advice on using less memory of the host."""
    requested = case.lead.facts.requested_bytes or 0
    if case.reason is Reason.HOST_ALLOCATOR and requested >= _ABSURD_BYTES:
        return "check the size that this line computes; it is allocated on the host, not on a device"
    if case.reason is Reason.HOST_ALLOCATOR:
        return (
            "the request is small, so the memory was full already: check what limits it (`free -h`, `ulimit -d -v`, the"
            " limit of the container or of Slurm's `--mem`), and record a memory snapshot to see what fills it"
        )
    return (
        "ask for more memory (`--mem` of Slurm, the container's limit), use fewer data-loader workers, load checkpoints"
        " with `mmap=True` or on one rank at a time"
    )


def _why_device(case: Case) -> str:
    """Return what a failed request for device memory means."""
    if case.reason is Reason.DRIVER_MEMORY:
        return (
            "PyTorch's own allocator would say how much it tried to allocate; this message is that of a CUDA call, most"
            " often of the first one that uses the GPU"
        )
    return "" if case.reason is Reason.LIBRARY_MEMORY else "a request for GPU memory was larger than what was free"


def _why_host(case: Case) -> str:
    """Return what a lack of host memory means."""
    if case.reason is Reason.HOST_ALLOCATOR:
        return "PyTorch asked the system for this much host memory, and got none"
    return "the kernel kills a process when the machine, or the job's limit, has no host memory left"


ENTRIES = (
    Failure(
        id="memory.device",
        kind=LogClass.OOM,
        what="A request for memory of a GPU failed.",
        when=lambda case: case.kind is LogClass.OOM,
        headline=oom,
        sentence=oom,
        why=_why_device,
        next=(lambda case: f"{for_one_rank(case)}{for_memory(case)}",),
    ),
    Failure(
        id="memory.host",
        kind=LogClass.HOST_OOM,
        what="The memory of the host, of the container or of the job ran out.",
        when=lambda case: case.kind is LogClass.HOST_OOM,
        headline=host_oom,
        sentence=host_oom,
        why=_why_host,
        next=(_for_host_memory,),
    ),
)
