"""Memory that ran out, on a device or on the host: what a message's sizes and frames say decides the advice."""

import re
from collections.abc import Callable
from typing import NamedTuple

from analyzers.case.facts import EventKind, LogClass, Reason
from analyzers.case.hypothesis import Case, Tier
from analyzers.case.wording import at_step, first_with, place, quoted, who
from analyzers.failures.entry import Advice, Example, Failure, Text, sign
from analyzers.words import (
    EXPANDABLE_SEGMENTS,
    EXPANDABLE_SEGMENTS_ON_AMD,
    LOAD_ON_HOST,
    rank_names,
    size,
    size_in_bytes,
)


def _asked_and_free(asked: int, free: int) -> tuple[str, str]:
    """Return both sizes, in MiB where they would read alike in a larger unit: 2.6 GiB may not fit into 2.6 GiB."""
    texts = size(asked), size(free)
    return texts if texts[0] != texts[1] or asked == free else (f"{asked / _MIB:,.1f} MiB", f"{free / _MIB:,.1f} MiB")


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
    wanted, free = _asked_and_free(facts.requested_bytes or 0, facts.free_bytes or 0)
    wanted = f": tried to allocate {wanted}" if facts.requested_bytes is not None else ""
    free = f", {free} free of {size(facts.total_bytes)}" if facts.free_bytes is not None else ""
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


_FRAME = re.compile(r'File ".{1,300}", line \d+, in (\S+)(?:\n[^\n]{0,40}? {2,}(\S[^\n]*))?')
"""Matches a frame of a traceback: its function, and its source line if there is one."""
_LOSS = re.compile(r"^(cross_entropy|nll_loss|log_softmax)$")
_LOGITS = re.compile(r"(?i)\blogits\b|lm_head|output_layer|cross_entropy|log_softmax")
_LOSS_IN_PIECES = (
    "compute the loss in pieces of the sequence, or by a kernel that fuses it with the output layer (such as Liger's"
    " fused_linear_cross_entropy{setting}): then the logits of all tokens are never in memory at once"
)
_IN_TRANSFORMERS = "; in transformers TrainingArguments(use_liger_kernel=True)"
_LARGE_SHARE, _UNUSED_SHARE = 0.05, 0.1
"""A request of the first share of the device is large by itself; reserved memory of which the second share is not in
use is fragmented, or else nearly full."""
_EVALUATION = re.compile(
    r"(?i)^(?!.*train).*(^|_)(eval|evaluate|estimate_loss|evaluation|val|valid|validate|validation)(_|$)"
)
_SAVING = re.compile(r"(?i)^(?!.*load).*(state_dict|full_tensor|(save|write|gather)_\w*(checkpoint|ckpt|model|state))")
_LOADING = re.compile(
    r"torch/serialization\.py|(?i:^|[._\s:])load_(?:state_dict|checkpoint|optimizer)"
    r"|_load_state_dict|\btorch\.load\("
)
_FOREACH = re.compile(r"^_multi_tensor_\w+$|^_multi_tensor_\w+\(")
_ALLOWED = re.compile(r"(?<=[.;] )(\d+\.\d+ [KMGT]iB) allowed;")
_PRIVATE_POOLS = re.compile(r"with (\d+\.\d+) (bytes|[KMGT]iB) allocated in private pools")
_PRIVATE_SHARE = 0.25
"""The share of the allocated memory from which on private pools explain a failure."""
_MIB = 1 << 20
_CONTEXT_BYTES = 1536 * _MIB
"""The most that the context of CUDA and the buffers of its libraries take in a process beside PyTorch's memory."""
_FOREIGN_SHARE, _EMPTY_SHARE = 0.15, 0.2
"""Memory of others counts from the first share of the device; a process that holds less than the second has hardly
begun to fill it."""
_LIMIT = "`torch.cuda.memory.set_per_process_memory_fraction(0.95)`"
_HIP = "HIP out of memory"
_FIND_RANK = "find out which rank failed, from logs of each rank (`torchrun --log-dir logs`, `srun --label`). Then "


class Request(NamedTuple):
    """The sizes in a message on a failed request, in bytes; None where the message does not have them.

    `reserved` is what PyTorch holds in this process, `unused` the part of it that no tensor has. `process` is the whole
    process, `listed` are other processes that the message names.
    """

    asked: int | None
    total: int | None
    free: int | None
    reserved: int | None
    unused: int | None
    process: int | None
    listed: int

    @property
    def needed(self) -> int | None:
        """What the allocator asks the driver for: 20 MiB for requests of 1 to 10 MiB, else whole blocks of 2 MiB.

        Source: the constants of c10/cuda/CUDACachingAllocator.
        """
        if self.asked is None:
            return None
        if self.asked < 10 * _MIB:
            return 20 * _MIB if self.asked > _MIB else 2 * _MIB
        return -(-self.asked // (2 * _MIB)) * 2 * _MIB

    @property
    def is_nearly_full(self) -> bool:
        """Whether what is free is so little that the driver's own rounding may use it up."""
        return self.free is not None and self.free <= max((self.needed or 0), (self.total or 0) // 50)

    @property
    def own(self) -> int | None:
        """What this process holds: as the message says, unless that contradicts what PyTorch holds."""
        if self.process is not None and self.process >= (self.reserved or 0):
            return self.process
        return None if self.reserved is None else self.reserved + _CONTEXT_BYTES

    @property
    def foreign(self) -> int:
        """What others hold: the processes that the message names, or else the rest of the device."""
        if self.listed or None in (self.total, self.free, self.own):
            return self.listed
        return max(0, (self.total or 0) - (self.free or 0) - (self.own or 0))

    @property
    def spilled(self) -> int:
        """What PyTorch holds beyond the size of the device, so that the driver has moved it to the host's memory.

        Where the message gives less for the whole process, or the device has room, PyTorch counts what an engine or a
        pool has unmapped.
        """
        is_less = self.process is not None and self.process < (self.reserved or 0)
        if not self.total or is_less or (self.free or 0) > self.total // 50:
            return 0
        return max(0, (self.reserved or 0) - self.total)

    @property
    def lacking(self) -> int:
        """How much more than the free memory was asked for, and is on the host already."""
        return max(0, (self.asked or 0) - (self.free or 0)) + self.spilled

    @property
    def outside(self) -> int:
        """What is neither free nor held by PyTorch in this process: of its CUDA context, its libraries and others."""
        return max(0, (self.total or 0) - (self.free or 0) - (self.reserved or 0))


def request_of(case: Case) -> Request:
    """Return the sizes in the message of a case."""
    facts = first_with(case, "requested_bytes").facts
    has_both = facts.allocated_bytes is not None and facts.unallocated_bytes is not None
    reserved = (facts.allocated_bytes or 0) + (facts.unallocated_bytes or 0) if has_both else None
    return Request(
        facts.requested_bytes,
        facts.total_bytes,
        facts.free_bytes,
        reserved,
        facts.unallocated_bytes,
        facts.process_bytes,
        sum(facts.other_processes),
    )


def _functions(case: Case) -> list[tuple[str, str]]:
    """Return (function, source line if it is known) of the frames of a failed request, the outermost first."""
    sources = dict(_FRAME.findall(case.lead.excerpt))
    names = [call.rpartition(":")[2] for call in case.lead.calls] or list(sources)
    return [(name, sources.get(name, "")) for name in names]


def _is_in(case: Case, pattern: "re.Pattern[str]") -> bool:
    """Return whether a function of the traceback matches a pattern."""
    return any(pattern.search(function) for function, _ in _functions(case))


def _is_of_tensors(case: Case) -> bool:
    """Return whether PyTorch's own allocator failed, not a library, NCCL or a call of CUDA."""
    outside = (Reason.DRIVER_MEMORY, Reason.LIBRARY_MEMORY, Reason.NCCL_BUFFERS)
    return case.kind is LogClass.OOM and case.reason not in outside


def _is_larger_than_the_device(case: Case) -> bool:
    """Return whether a single tensor of this size does not fit, although the process has hardly begun to fill the GPU."""
    asked = request_of(case)
    if not _is_of_tensors(case) or not asked.asked or not asked.total:
        return False
    is_alone = (asked.reserved or 0) <= _EMPTY_SHARE * asked.total and asked.foreign <= _EMPTY_SHARE * asked.total
    return asked.asked > asked.total or (asked.asked > asked.total / 2 and is_alone)


def _why_larger(case: Case) -> str:
    """Return how one tensor compares with the device."""
    asked = request_of(case)
    against = "more than the whole GPU has" if (asked.asked or 0) > (asked.total or 0) else "most of the GPU"
    held = f", while this process held {size(asked.reserved)}" if asked.reserved is not None else ""
    return f"one tensor of {size(asked.asked)} was asked for: {against} ({size(asked.total)}){held}"


def _has_foreign_memory(case: Case) -> bool:
    """Return whether other processes hold so much of the device that the request had fitted without them."""
    asked = request_of(case)
    if (
        not _is_of_tensors(case)
        or not asked.foreign
        or not (asked.free is None or asked.is_nearly_full or asked.lacking)
    ):
        return False
    is_much = asked.listed > 0 or asked.foreign >= _FOREIGN_SHARE * (asked.total or 0)
    return is_much and asked.foreign >= asked.lacking


def _foreign_next(case: Case) -> str:
    """Return what to do about memory that other processes hold."""
    asked, names = request_of(case), case.lead.message
    listed = re.findall(r"Process (\d+) has (\d[\d.]*) ([KMGT]iB|bytes)", names)
    pids = [pid for pid, amount, unit in listed if size_in_bytes(amount, unit) != asked.process]
    which = f"process {', '.join(pids[:3])}; " if pids else ""
    if asked.listed:
        return f"see what the other processes on the device are, which have {size(asked.foreign)} ({which}`nvidia-smi`): end them, or take another GPU"
    return (
        f"see by `nvidia-smi` which processes hold the {size(asked.outside)} outside of PyTorch here (some hundred MiB of it are this"
        " process's own CUDA context), and end them, or take another GPU"
    )


def _loads_on_its_device(case: Case) -> bool:
    """Return whether the failure came while a checkpoint was loaded."""
    return _is_of_tensors(case) and (case.called(_LOADING.pattern) or bool(_LOADING.search(case.lead.excerpt)))


def _loads_pretrained(case: Case) -> bool:
    """Return whether the model itself was being made from a checkpoint, so that there is no second copy yet."""
    return case.called(r":from_pretrained$|:_load_pretrained_model$") or case.printed(
        r"in (?:from_pretrained|_load_pretrained_model)\b"
    )


def _was_refused_in_spite_of_room(case: Case) -> bool:
    """Return whether more was free than the allocator had to ask for."""
    asked = request_of(case)
    if not _is_of_tensors(case) or asked.needed is None or asked.free is None or _ALLOWED.search(case.lead.message):
        return False
    return asked.free > asked.needed


def _is_limited(case: Case) -> bool:
    return _is_of_tensors(case) and _ALLOWED.search(case.lead.message) is not None


def _is_in_private_pools(case: Case) -> bool:
    """Return whether much of the allocated memory is in private pools, as PyTorch's message says."""
    allocated = first_with(case, "allocated_bytes").facts.allocated_bytes
    pools = _PRIVATE_POOLS.search(case.lead.message)
    held = size_in_bytes(pools[1], pools[2]) if pools else None
    return bool(_is_of_tensors(case) and held and allocated and held >= _PRIVATE_SHARE * allocated)


def _is_fragmented(case: Case) -> bool:
    """Return whether the allocator held enough unused memory for the request, in pieces that were too small."""
    asked = request_of(case)
    unused = asked.unused or 0
    return bool(
        _is_of_tensors(case)
        and asked.asked
        and unused > asked.asked
        and unused >= _UNUSED_SHARE * (asked.reserved or 0)
    )


def _is_for_loss(case: Case) -> bool:
    """Return whether the failed request was for logits or for what a loss makes of them, and large.

    Without sizes, a loss function at the end of the traceback is enough.
    """
    facts, calls = first_with(case, "requested_bytes").facts, _functions(case)
    is_large = (facts.requested_bytes or 0) >= _LARGE_SHARE * (facts.total_bytes or 0)
    if not _is_of_tensors(case):
        return False
    if any(_LOSS.search(function) for function, _ in calls) or (
        not calls and case.printed(r"log_softmax|cross_entropy|logprobs_from_logits")
    ):
        return is_large or facts.requested_bytes is None
    return bool(calls and facts.total_bytes) and is_large and bool(_LOGITS.search(calls[-1][1]))


def _makes_optimizer_state(case: Case) -> bool:
    """Return whether the failure came in the step of an optimizer, where it makes its state."""
    if not _is_of_tensors(case):
        return False
    made = case.printed(r"exp_avg|momentum_buffer|state\[['\"]")
    in_step = case.called(r"optim\w*/[^:]*:\d+:step$|low_level_optim\S*:step$|_init_group$|optimizer_step$")
    in_closure = case.called(r":\w*closure$|:(?:training_step|forward|_call_impl|backward)$")
    return made or (not in_closure and (in_step or case.printed(r"\b(?:self\.)?optim(?:izer)?\.step\(")))


def _copies_parameters(case: Case) -> bool:
    """Return whether a multi-tensor step of an optimizer failed, which works on all parameters at once."""
    called = any(_FOREACH.search(function) or _FOREACH.search(source) for function, source in _functions(case))
    return _is_of_tensors(case) and called


def _gathers_state(case: Case) -> bool:
    """Return whether the failure came while the state was gathered or copied to be saved."""
    return _is_of_tensors(case) and (
        _is_in(case, _SAVING)
        or case.printed(r"Failed to clone\(\) tensor with name|this state_dict entry could point to invalid memory")
    )


def _moves_model(case: Case) -> bool:
    """Return whether a module was moved to a device when memory lacked, outside of any forward pass."""
    names = [name for name, _ in _functions(case)]
    is_moved = any(name in ("to", "cuda") for name in names) and any(name in ("_apply", "convert") for name in names)
    return _is_of_tensors(case) and is_moved and not any(name in ("forward", "backward") for name in names)


def _evaluates(case: Case) -> bool:
    return _is_of_tensors(case) and (_is_in(case, _EVALUATION) or _keeps_predictions(case))


def _keeps_predictions(case: Case) -> bool:
    """Return whether an evaluation failed where it joins the predictions of its batches."""
    return case.called(r"nested_concat|torch_pad_and_concatenate|gather_for_metrics|_pad_across") or case.printed(
        r"preds_host|all_preds|\b(?:torch_pad_and_concatenate|nested_concat)\("
    )


def _is_one_large_tensor(case: Case) -> bool:
    """Return whether a single request was large for its device."""
    asked = request_of(case)
    return (asked.asked or 0) >= max(1 << 30, _LARGE_SHARE * (asked.total or 0))


def _numbers(case: Case) -> str:
    """Return the sizes that the message has, as a clause."""
    asked = request_of(case)
    held = asked.reserved is not None and asked.unused is not None
    # What a pool has unmapped is counted as held, too.
    held = held and (asked.process is None or asked.process >= (asked.reserved or 0))
    wanted, free = _asked_and_free(asked.asked or 0, asked.free or 0)
    parts = (
        (asked.asked, f"{wanted} was asked for"),
        (asked.free, f"{free} was free of {size(asked.total)}"),
        (
            asked.reserved if held else None,
            f"PyTorch held {size(asked.reserved)} in this process, {size(asked.unused)} of it unused",
        ),
    )
    return ", ".join(text for value, text in parts if value is not None)


def _with_numbers(mechanism: str) -> Callable[[Case], str]:
    """Return a function that writes the mechanism of a failure after the sizes in its message."""
    return lambda case: f"{numbers}; {mechanism}" if (numbers := _numbers(case)) else mechanism


def _lacks(case: Case) -> str:
    """Return how much has to become free, as a clause for an advice; empty if it is not known."""
    asked = request_of(case)
    return f": at least {size(asked.lacking)} must become free" if asked.free is not None and asked.lacking else ""


def _has_one_rank_of_several(case: Case) -> bool:
    """Return whether one of several ranks ran out of memory: the number of a rank shows that all lower ones exist."""
    known = case.world_size or len(case.logs)
    return len(case.ranks) == 1 and max(known, case.ranks[0] + 1) >= 2


def _outside_next(case: Case) -> str:
    """Return advice on a failed request of the driver or of a library, which get what the allocator leaves over."""
    find = "" if case.ranks else _FIND_RANK
    look = f"{find}check with `nvidia-smi` on its node whether another process holds the GPU."
    if case.reason is Reason.LIBRARY_MEMORY:
        return (
            f"{look} If none does, PyTorch's own tensors and cache fill it: leave memory to the library with a smaller"
            f" batch, or with {_LIMIT}"
        )
    return (
        f"{look} If none does: after some steps, PyTorch's own cache fills it, so leave room with {_LIMIT}; at the first"
        " use of the GPU, if the error comes back there, exclude that node"
    )


def _entry(
    name: str,
    what: str,
    headline: Text,
    why: Text,
    steps: tuple[Advice | Text, ...],
    when: Callable[[Case], bool],
    *,
    sentence: Text | None = oom,
    rules_out: str = "",
    check: str = "",
    examples: tuple[Example, ...] = (),
) -> Failure:
    """Return the entry of a failed request for device memory."""
    return Failure(
        id=f"memory.{name}",
        kind=LogClass.OOM,
        what=what,
        headline=headline,
        sentence=sentence,
        why=why,
        next=steps,
        when=when,
        rules_out=rules_out,
        check=check,
        examples=examples,
    )


_BATCHES = (
    "per_device_train_batch_size",
    "train_micro_batch_size_per_gpu",
    "micro_batch_size",
    "train_batch_size",
    "batch_size",
)
_RECOMPUTES = ("gradient_checkpointing", "activation_checkpointing", "use_gradient_checkpointing")


def _use_less(case: Case) -> str:
    """Return how to use less device memory, without what the text of the job shows to be so already."""
    is_one = any(case.context.has(name, "1") for name in _BATCHES)
    ways = [
        "a shorter sequence or a smaller resolution (the batch is 1 already)"
        if is_one
        else "a smaller batch or sequence",
        *(
            []
            if any(case.context.has(name, "true") for name in _RECOMPUTES)
            else ["recompute activations (in training)"]
        ),
        "or shard over more ranks",
    ]
    return (
        f"use {', '.join(ways)}. To see what fills the memory,"
        " record a memory snapshot (`torch.cuda.memory._record_memory_history()`)"
    )


_SNAPSHOT = "record a memory snapshot (`torch.cuda.memory._record_memory_history()`) and give it to `workbench memory`"


def _allowed(case: Case) -> str:
    """Return the limit of the process that the message names."""
    match = _ALLOWED.search(case.lead.message)
    return match[1] if match else "a part"


def _asked(case: Case) -> str:
    """Return a clause with what was asked for and what was free; empty without sizes."""
    asked = request_of(case)
    free = f", {size(asked.free)} free" if asked.free is not None else ""
    return f": {size(asked.asked)} asked for{free}" if asked.asked else ""


def _wakes(case: Case) -> bool:
    return case.called("wake_up") or case.printed("wake_up|woken up|[Ww]ak(?:e|ing) up")


def _is_of_language(case: Case) -> bool:
    """Return whether the text is about a language model."""
    names = r"(?i)lm_head|vocab|causal_?lm|language_model|llama|qwen|mistral|gemma|deepseek|\bgpt|transformers/models/|transformers/loss/|fixed_cross_entropy|megatron"
    return case.printed(names) or case.called(names) or case.context.says(names)


def _has_expandable_segments(case: Case) -> bool:
    return case.context.says(r"expandable_segments['\"]?[:=] ?['\"]?True")


def _is_absurd(case: Case) -> bool:
    """Return whether no device has as much memory as was asked for: a size that was computed wrongly."""
    asked = request_of(case)
    return _is_of_tensors(case) and (asked.asked or 0) >= max(_ABSURD_SHARE * (asked.total or 0), _ABSURD_ON_DEVICE)


def _is_in_extension(case: Case) -> bool:
    """Return whether the innermost frame is a package that is neither PyTorch nor the user's own code."""
    return bool(case.lead.calls) and bool(
        re.search(r"site-packages/(?!torch/)|dist-packages/(?!torch/)", case.lead.calls[-1])
    )


_ABSURD_SHARE, _ABSURD_ON_DEVICE = 20, 2 << 40
_SMALL_ON_HOST = 1 << 30
_ABSURD_BYTES = 64 << 30
"""A request for this much host memory or more has probably a wrong size; it is hardly the last of many requests."""


def _for_host_memory(case: Case) -> str:
    """Return advice on using less memory of the host."""
    requested = case.lead.facts.requested_bytes or 0
    if case.reason is Reason.HOST_ALLOCATOR and requested >= _ABSURD_BYTES:
        return "check the size that this line computes; it is allocated on the host, not on a device"
    if case.reason is Reason.HOST_ALLOCATOR:
        return (
            f"{'the request is small, so' if requested < _SMALL_ON_HOST else 'if the request is as large as expected,'} the memory was full"
            " already: check what limits it (`free -h`, `ulimit -d -v`, the"
            " limit of the container or of Slurm's `--mem`), and record a memory snapshot to see what fills it"
        )
    return (
        "ask for more memory (`--mem` of Slurm, the container's limit), use fewer data-loader workers, load checkpoints"
        " with `mmap=True` or on one rank at a time"
    )


def _why_host(case: Case) -> str:
    """Return what a lack of host memory means."""
    if case.reason is Reason.HOST_ALLOCATOR:
        return "PyTorch asked the system for this much host memory, and got none"
    return "the kernel kills a process when the machine, or the job's limit, has no host memory left"


ENTRIES = (
    _entry(
        "nccl_buffers",
        "NCCL found no device memory for its buffers.",
        "No memory of the GPU is left for NCCL's buffers",
        "NCCL takes its buffers when a process group first communicates, from what PyTorch's allocator and other processes"
        " have left",
        (
            f"leave memory to NCCL: a smaller batch, {_LIMIT}, or smaller buffers (NCCL_BUFFSIZE=1048576)",
            "see by `nvidia-smi` whether other processes, also other ranks of this job, hold this GPU",
        ),
        lambda case: case.kind is LogClass.OOM and case.reason is Reason.NCCL_BUFFERS,
    ),
    _entry(
        "fsdp_setup",
        "FSDP copies the parameters of a module into one flat tensor when it wraps it, and both do not fit.",
        "FSDP's set-up copies the parameters of a whole module into one flat tensor: both do not fit",
        _with_numbers(
            "without a policy the whole model is one unit, whose flat tensor is as large as the model and needs room beside it"
        ),
        (
            "unless it is so already, wrap the layers as units of their own: auto_wrap_policy=transformer_auto_wrap_policy with the class of the layer (Lightning:"
            " FSDPStrategy(auto_wrap_policy=...)), or FSDP2's fully_shard on each layer, then on the model",
            "build the model on the host or the meta device, and let FSDP move it unit by unit (device_id=, sync_module_states=True,"
            " param_init_fn)",
        ),
        lambda case: (
            _is_of_tensors(case)
            and (
                case.called(r":flatten_tensors|:_init_flat_param|:_init_param_handle")
                or case.printed(r"in (?:flatten_tensors|_init_flat_param)\b")
            )
        ),
        rules_out="the failure is in a step, not where the model is wrapped",
    ),
    _entry(
        "engine_wakes",
        "An inference engine that shares the GPU with the training wakes up and finds no memory.",
        lambda case: (
            "The inference engine woke up and found no GPU memory beside the training"
            if _wakes(case)
            else "The inference engine's own allocator (cumem) found no GPU memory"
        ),
        lambda case: (
            "the engine gave its memory back while the model was trained, and takes it again for generation; what the GPU holds by then"
            " (weights, optimizer, cached blocks) leaves too little"
            if _wakes(case)
            else "with sleep mode the engine maps its weights and KV cache by calls of its own, at its start and each time it wakes up"
        ),
        (
            "let the training give up its memory before: offload model and optimizer for generation (offload_model, offload_optimizer, the"
            " names differ), and torch.cuda.empty_cache()",
            "lower the engine's share (vllm_gpu_memory_utilization, for example 0.4) and its longest sequence (max_model_len)",
        ),
        lambda case: case.kind is LogClass.OOM and case.printed(r"cumem_allocator|cumem\.py"),
        examples=(
            Example(
                "Starting the engine\nCUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62\n",
                says=("own allocator (cumem)",),
            ),
        ),
    ),
    _entry(
        "driver",
        "A call of CUDA, not PyTorch's allocator, found no device memory.",
        "A call of CUDA found no device memory, often the first one that uses the GPU",
        "PyTorch's own allocator would say how much it tried to allocate; this message is that of another call of CUDA",
        (_outside_next,),
        lambda case: case.kind is LogClass.OOM and case.reason is Reason.DRIVER_MEMORY,
    ),
    _entry(
        "library",
        "A library of CUDA found no device memory for its own data.",
        "A library of CUDA reports that its allocation failed",
        "such a library allocates its handles and workspaces by itself; if the GPU has room, an error in a kernel before shows so, too",
        (
            _outside_next,
            "if memory is free: run with CUDA_LAUNCH_BLOCKING=1 or on the CPU, which show an earlier fault such as an index out of range",
        ),
        lambda case: case.kind is LogClass.OOM and case.reason is Reason.LIBRARY_MEMORY,
    ),
    _entry(
        "absurd_request",
        "A size was asked for that no device has.",
        lambda case: f"{size(request_of(case).asked)} was asked for, more than any GPU has: the size is wrong",
        "such a number comes from a shape that is a product of large ones (all pairs of points, a broadcast), an overflow, an"
        " uninitialised value, or compiled code that does not fit; no GPU is large enough",
        (
            Advice(
                "if the failing line calls a compiled extension: build it again for the installed PyTorch and CUDA"
                " (`nvcc --version` beside torch.version.cuda, TORCH_CUDA_ARCH_LIST of the GPU; delete its build folder first)",
                lambda case: _is_in_extension(case) or not case.lead.calls,
            ),
            "print the shapes and the numbers from which this line computes the size of its tensor",
        ),
        _is_absurd,
        sentence=None,
    ),
    _entry(
        "spilled",
        "PyTorch holds more than the GPU has: most often the driver has moved memory to the host.",
        lambda case: (
            f"PyTorch holds {size(request_of(case).reserved)} on a GPU of {size(request_of(case).total)}: memory has moved to the host"
        ),
        _with_numbers(
            "that is more than the GPU has: a driver that may move memory to the host (that of Windows, also below WSL) moves what"
            " does not fit, which is slow, and asks fail once that is full"
        ),
        (
            lambda case: (
                f"use a smaller batch, shorter samples or activation checkpointing: {size(request_of(case).lacking)} less have to be"
                " asked for until all of it fits into the GPU"
            ),
            "under Windows switch that off while you look for the right size, so that a run that does not fit fails at once"
            " (NVIDIA's control panel: CUDA - Sysmem Fallback Policy)",
        ),
        lambda case: _is_of_tensors(case) and request_of(case).spilled > 0,
    ),
    _entry(
        "model_to_device",
        "The weights of a model were moved to a GPU, and do not fit there.",
        "The weights of a model are moved to the GPU, and do not fit there",
        _with_numbers("the failing line moves a model: neither the batch nor the length of the samples matters for it"),
        (
            "see by `nvidia-smi` that nobody else holds this GPU, and that the model is moved once",
            "load the weights in 16 bits (torch_dtype=torch.bfloat16) or quantised (8 or 4 bits, with LoRA for training), or take a"
            " smaller model or a larger GPU; several GPUs can hold parts of it (FSDP, DeepSpeed ZeRO-3, device_map='auto')",
        ),
        _moves_model,
        rules_out="frames of forward or backward",
    ),
    _entry(
        "request_larger_than_device",
        "One tensor was asked for that a GPU cannot hold, or only an empty one.",
        lambda case: (
            f"One tensor of {size(request_of(case).asked)} was asked for; the GPU has {size(request_of(case).total)} in all"
        ),
        _why_larger,
        (
            lambda case: (
                "print the shapes just before this line, and find the tensor whose shape is wrong or grows with the data: a broadcast, a"
                " gather of all ranks, logits of all tokens, an evaluation with a batch or a number of samples of its own"
                + (
                    ". Freeing memory does not help"
                    if (request_of(case).asked or 0) > (request_of(case).total or 0)
                    else ""
                )
            ),
        ),
        _is_larger_than_the_device,
        sentence=None,
        rules_out="the process or others already hold most of the GPU",
    ),
    _entry(
        "loading_beside_others",
        "Tensors of a checkpoint are loaded onto a GPU that others have filled.",
        lambda case: f"A checkpoint is loaded onto a GPU of which others hold {size(request_of(case).foreign)}",
        _with_numbers(
            "without map_location, torch.load puts tensors back on the GPU from which they were saved, for all ranks"
            " the same one"
        ),
        (
            f"if several ranks load: load into host memory with {LOAD_ON_HOST}, or with map_location of the rank's own "
            "device; else several ranks may fill one GPU",
            _foreign_next,
        ),
        lambda case: _loads_on_its_device(case) and _has_foreign_memory(case),
        check="`nvidia-smi` while it loads: is GPU 0 filled by processes of this job?",
    ),
    Failure(
        id="memory.inference_engine",
        kind=LogClass.OOM,
        what="An inference engine (vLLM, SGLang) on the same GPU holds most of its memory beside the training.",
        clues=(sign("gpu_memory_utilization"), sign("mem_fraction_static")),
        when=lambda case: (
            _is_of_tensors(case)
            and case.printed(r"gpu_memory_utilization|mem_fraction_static")
            and (_has_foreign_memory(case) or request_of(case).is_nearly_full or request_of(case).lacking > 0)
        ),
        headline=lambda case: (
            f"An inference engine holds up to {size(held)} of this GPU"
            if (held := request_of(case).foreign)
            else "The GPU is full, and an inference engine takes its share of it"
        ),
        sentence=oom,
        why=_with_numbers(
            "such an engine takes its share of the whole GPU when it starts, for its weights and its KV cache"
        ),
        next=(
            "lower its share (vllm_gpu_memory_utilization or gpu_memory_utilization, for example 0.3; SGLang:"
            " mem_fraction_static), or give the engine a dedicated device; with sleep mode it frees its memory while the"
            " model is trained",
        ),
        rules_out="no engine runs on this GPU",
    ),
    _entry(
        "other_processes",
        "Other processes hold the memory of the GPU.",
        lambda case: (
            f"Other processes hold {size(request_of(case).foreign)} of the GPU's {size(request_of(case).total)}"
            if request_of(case).listed
            else f"{size(request_of(case).outside)} of the GPU's {size(request_of(case).total)} are held outside of this PyTorch"
        ),
        _with_numbers(
            "the rest belongs to other processes, which may be ranks of this job, of another user or outside of the"
            " container, and to this process's own CUDA context and libraries"
        ),
        (
            _foreign_next,
            "if they are ranks of this job on one GPU, give each its own (torch.cuda.set_device(local_rank)); a"
            " process of an earlier run may have stayed, which nvidia-smi in a container does not show",
        ),
        _has_foreign_memory,
        rules_out="this process holds nearly all that is not free",
    ),
    _entry(
        "limited_fraction",
        "PyTorch's own limit for this process was reached.",
        "The process reached its own limit of memory, not that of the GPU",
        "a fraction was set for this process, and PyTorch refuses what lies above it",
        (
            lambda case: (
                f"raise or remove the limit of this process: it may use {_allowed(case)} of the device (its memory"
                " fraction, as set by `torch.cuda.memory.set_per_process_memory_fraction` or"
                " per_process_memory_fraction)"
            ),
            _use_less,
        ),
        _is_limited,
    ),
    _entry(
        "refused_in_spite_of_room",
        "The driver refused a request although enough memory was free.",
        lambda case: f"{size(request_of(case).asked)} was refused although {size(request_of(case).free)} was free",
        _with_numbers(
            "so another process took the memory for a moment, the driver, the host or a virtual GPU has a limit of its own, or the"
            " runtime is at fault"
        ),
        (
            lambda case: (
                f"run it again, and watch `{'rocm-smi' if _HIP in case.lead.message else 'nvidia-smi -l 1'}`: if another"
                " process comes and goes, it takes the memory"
            ),
            "otherwise look for a limit (MIG or vGPU profile, `ulimit -v`, WSL; under Windows the size of the paging file) and try another"
            " version of the driver or of ROCm",
        ),
        _was_refused_in_spite_of_room,
        sentence=None,
        rules_out="less is free than the allocator asks for: 20 MiB for requests of 1 to 10 MiB",
    ),
    _entry(
        "private_pools",
        "Private pools of CUDA graphs hold the memory.",
        "Private pools of CUDA graphs hold much of the memory",
        _with_numbers("what is in the pool of a graph cannot be used by anything else"),
        (
            "capture fewer CUDA graphs (shapes that differ, mode='reduce-overhead' of torch.compile), or your own ones into one"
            " memory pool (torch.cuda.graph(..., pool=...))",
        ),
        _is_in_private_pools,
    ),
    _entry(
        "fragmented",
        "Enough reserved memory was unused, but in pieces that were too small.",
        lambda case: (
            f"Memory is fragmented: {size(request_of(case).unused)} reserved and unused, {size(request_of(case).asked)} asked for"
        ),
        _with_numbers(
            "unused memory serves a request only as one piece that is large enough, in the pool and stream of the request"
        ),
        (
            Advice(
                lambda case: (
                    f"set {EXPANDABLE_SEGMENTS_ON_AMD if _HIP in case.lead.message else EXPANDABLE_SEGMENTS}: the allocator"
                    f" had {size(request_of(case).unused)} reserved and unused, more than the"
                    f" {size(request_of(case).asked)} requested, but not in one piece"
                ),
                lambda case: not _has_expandable_segments(case),
            ),
            Advice(
                f"expandable_segments is on already: {_SNAPSHOT}, which shows what holds the pieces; batches of equal lengths leave fewer",
                _has_expandable_segments,
            ),
        ),
        _is_fragmented,
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "/w/train.py", line 40, in main\n'
                "    out = model(x)\n"
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of"
                " 23.64 GiB of which 0.50 GiB is free. Including non-PyTorch memory, this process has 22.50 GiB memory in"
                " use. Of the allocated memory 15.00 GiB is allocated by PyTorch, and 7.00 GiB is reserved by PyTorch but"
                " unallocated.\n",
                says=("not in one piece",),
            ),
            Example(
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
                "Traceback (most recent call last):\n"
                '  File "/w/train.py", line 40, in main\n'
                "    out = model(x)\n"
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of"
                " 23.64 GiB of which 0.50 GiB is free. Including non-PyTorch memory, this process has 22.50 GiB memory in"
                " use. Of the allocated memory 15.00 GiB is allocated by PyTorch, and 7.00 GiB is reserved by PyTorch but"
                " unallocated.\n",
                says=("is on already",),
            ),
        ),
    ),
    _entry(
        "loading",
        "A checkpoint is loaded onto a device that has no room for a second copy.",
        lambda case: (
            "The weights do not fit onto the GPU: memory ran out while the model was loaded"
            if _loads_pretrained(case)
            else "GPU memory ran out while a checkpoint was loaded"
        ),
        lambda case: _with_numbers(
            "the weights themselves are put on the GPU here, before any step"
            if _loads_pretrained(case)
            else "what a checkpoint is loaded from is a second copy, if it is on the GPU beside the model and the optimizer"
        )(case),
        (
            Advice(
                "load the weights in fewer bits (dtype=torch.bfloat16, 4 or 8 bits), shard them over more GPUs, or keep a part on the host"
                " (device_map='auto'); on several ranks, check that each loads onto its own GPU",
                _loads_pretrained,
            ),
            Advice(
                f"load the checkpoint into host memory with {LOAD_ON_HOST}", lambda case: not _loads_pretrained(case)
            ),
            Advice(
                "delete the loaded dictionary after load_state_dict (`del checkpoint`): it is a second copy of what it holds",
                lambda case: not _loads_pretrained(case),
            ),
        ),
        _loads_on_its_device,
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "/w/train.py", line 12, in main\n'
                '    model = AutoModel.from_pretrained(path, device_map="cuda:0")\n'
                '  File "/e/lib/python3.11/site-packages/transformers/modeling_utils.py", line 4225, in from_pretrained\n'
                "    ) = cls._load_pretrained_model(\n"
                '  File "/e/lib/python3.11/site-packages/transformers/modeling_utils.py", line 4728, in'
                " _load_pretrained_model\n"
                "    new_error_msgs = _load_state_dict_into_meta_model(\n"
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 112.00 MiB. GPU 0 has a total capacity of"
                " 23.64 GiB of which 60.00 MiB is free. Including non-PyTorch memory, this process has 22.50 GiB memory in"
                " use. Of the allocated memory 21.90 GiB is allocated by PyTorch, and 120.00 MiB is reserved by PyTorch"
                " but unallocated.\n",
                says=("The weights do not fit onto the GPU", "fewer bits"),
            ),
        ),
    ),
    _entry(
        "foreach_copies",
        "The multi-tensor step of the optimizer makes temporary tensors for all parameters at once.",
        "The optimizer's multi-tensor step found no room for its temporary tensors",
        _with_numbers(
            "with foreach=True the step works on lists of all parameters, and makes temporary tensors as large as these"
        ),
        (
            "construct the optimizer with fused=True, or with foreach=False: then it makes no temporary tensors of all"
            " parameters at once. If that is not enough, shard the optimizer state over more ranks",
        ),
        _copies_parameters,
    ),
    Failure(
        id="memory.state_dict_clone",
        kind=LogClass.OOM,
        what="FSDP found no memory on the GPU to copy the full weights for a checkpoint, and only warned of it.",
        signs=(sign("Failed to clone() tensor"), sign("state_dict entry could point to invalid memory")),
        event=EventKind.OUT_OF_MEMORY,
        headline="FSDP had no GPU memory to copy the full weights for a checkpoint: its entry is unusable",
        why="to gather the full state dict on one device takes its whole size beside the sharded weights; FSDP reports"
        " this as a warning, goes on, and this entry may point to memory that is gone",
        next=(
            "gather on the host: StateDictType.FULL_STATE_DICT with FullStateDictConfig(offload_to_cpu=True,"
            " rank0_only=True), or save shards with torch.distributed.checkpoint; do not use a checkpoint that was"
            " saved from this state",
        ),
        rules_out="the warning does not mention memory",
        when=lambda case: case.printed("out of memory"),
        examples=(
            Example(
                "fully_sharded_data_parallel.py:2224: UserWarning: Failed to clone() tensor with name lm_head.weight. This may"
                " mean that this state_dict entry could point to invalid memory regions after returning from state_dict()"
                " call if this parameter is managed by FSDP. Error: CUDA out of memory. Tried to allocate 502.00 MiB (GPU 1;"
                " 39.59 GiB total capacity; 35.54 GiB already allocated; 276.19 MiB free; 37.22 GiB reserved in total by"
                " PyTorch)",
                source="tatsu-lab/stanford_alpaca#65",
                says=("offload_to_cpu", "unusable"),
            ),
        ),
        knowledge="torch/distributed/fsdp/_state_dict_utils.py, which catches the error and warns",
    ),
    _entry(
        "gathered_state",
        "The state is gathered or copied on the device to be saved.",
        "GPU memory ran out while weights or other state were gathered or copied",
        _with_numbers(
            "to gather or clone the full weights on one device takes their whole size beside what is there already"
        ),
        (
            "do not gather or copy the state on the device: for a checkpoint save shards with torch.distributed.checkpoint, or"
            " gather with cpu_offload=True; a copy for another use (EMA, a merge) can be made on the host, tensor by tensor",
            Advice(
                "with FSDP: StateDictType.FULL_STATE_DICT and FullStateDictConfig(offload_to_cpu=True, rank0_only=True)",
                lambda case: case.printed(r"(?i)fsdp|fully_?sharded"),
            ),
        ),
        _gathers_state,
    ),
    _entry(
        "optimizer_state",
        "The first step of the optimizer makes its state, and finds no room for it.",
        lambda case: (
            "The optimizer's step found no room for its state"
            if case.printed(r"exp_avg|momentum_buffer|state\[['\"]|_init_group|_init_state")
            or case.called("_init_group$")
            else "GPU memory ran out in the optimizer's step"
        ),
        _with_numbers(
            "an optimizer such as Adam makes two values for each parameter in its first step, and keeps them; later steps need"
            " temporary tensors only"
        ),
        (
            "in the first step: make room for the optimizer's state, which it allocates after its forward and backward pass:"
            " shard it over more ranks (FSDP, ZeRO), use an optimizer with less state (8-bit Adam, Adafactor), offload"
            " it to the host, or take a smaller model",
        ),
        _makes_optimizer_state,
        rules_out="several steps were trained before",
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "/w/train.py", line 40, in main\n'
                "    optimizer.step()\n"
                '  File "/e/lib/python3.11/site-packages/torch/optim/adamw.py", line 220, in step\n'
                "    adamw(\n"
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 112.00 MiB. GPU 0 has a total capacity of"
                " 23.64 GiB of which 60.00 MiB is free. Including non-PyTorch memory, this process has 22.50 GiB memory in"
                " use. Of the allocated memory 21.90 GiB is allocated by PyTorch, and 120.00 MiB is reserved by PyTorch"
                " but unallocated.\n",
                says=("in the optimizer's step", "in the first step"),
            ),
        ),
    ),
    _entry(
        "evaluation",
        "An evaluation ran out of memory, not a training step.",
        "The evaluation ran out of memory, not a training step",
        lambda case: _with_numbers(
            "the predictions of all batches are joined on the device, and kept there until the evaluation ends, unless"
            " eval_accumulation_steps moves them to the host before"
            if _keeps_predictions(case)
            else "an evaluation may keep the predictions of all batches, run without no_grad, or have larger batches"
        )(case),
        (
            Advice(
                "the predictions of all batches are kept on the device: set eval_accumulation_steps, or reduce them at once"
                " (preprocess_logits_for_metrics, for example to the argmax)",
                _keeps_predictions,
            ),
            "make its batch smaller (per_device_eval_batch_size), and check that it runs under torch.no_grad() or"
            " torch.inference_mode()",
        ),
        _evaluates,
    ),
    _entry(
        "logits",
        "The logits of all tokens, or what a loss makes of them, do not fit.",
        lambda case: (
            "The logits or their loss do not fit"
            + (f": {size(request_of(case).asked)} more" if request_of(case).asked else ":")
            + (" for tokens x vocabulary" if _is_of_language(case) else " for positions x classes")
        ),
        lambda case: _with_numbers(
            "logits take tokens x vocabulary x bytes, often several times over in the loss"
            if _is_of_language(case)
            else "logits take a value for each position (pixel, token) and class, and the loss makes further tensors of that size"
        )(case),
        (
            Advice(
                lambda case: _LOSS_IN_PIECES.format(
                    setting=_IN_TRANSFORMERS if "/transformers/" in case.lead.excerpt else ""
                ),
                _is_of_language,
            ),
            Advice(
                "compute the loss in pieces of the batch or of the positions, or at a smaller resolution",
                lambda case: not _is_of_language(case),
            ),
            lambda case: f"otherwise {_use_less(case)}",
        ),
        _is_for_loss,
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "/w/train.py", line 40, in main\n'
                "    loss = criterion(out, mask)\n"
                '  File "/e/lib/python3.11/site-packages/torch/nn/functional.py", line 3053, in cross_entropy\n'
                "    return torch._C._nn.cross_entropy_loss(\n"
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of"
                " 23.64 GiB of which 1.10 GiB is free. Including non-PyTorch memory, this process has 22.50 GiB memory in"
                " use. Of the allocated memory 21.90 GiB is allocated by PyTorch, and 120.00 MiB is reserved by PyTorch"
                " but unallocated.\n",
                says=("positions x classes", "of the batch or of the positions"),
            ),
        ),
    ),
    _entry(
        "one_rank",
        "One of several ranks ran out of memory.",
        lambda case: f"{who(case.ranks)} ran out of device memory{_asked(case)}",
        _with_numbers("the logs show no such failure of the other ranks"),
        (
            lambda case: (
                f"first compare rank {case.ranks[0]} with the other ranks: the samples and lengths of its batch, and what"
                " only it does (evaluation, a checkpoint, logging, more layers of a pipeline)"
            ),
            lambda case: f"if they are nearly as full: {_use_less(case)}{_lacks(case)}",
        ),
        lambda case: case.kind is LogClass.OOM and _has_one_rank_of_several(case),
    ),
    _entry(
        "device",
        "A request for memory of a GPU failed.",
        lambda case: f"{who(case.ranks)} ran out of device memory{_asked(case)}",
        _numbers,
        (
            Advice(
                "in a training step of a language model, one tensor of this size is most often that of the logits (tokens x vocabulary x 4"
                " bytes: compute the loss in pieces of the sequence) or of attention scores (length squared: use flash or SDPA attention);"
                " shorter sequences or a smaller micro batch make both smaller",
                lambda case: _is_one_large_tensor(case) and _is_of_language(case),
            ),
            Advice(
                "print the shapes at the line that failed: it asked for one tensor of this size",
                lambda case: _is_one_large_tensor(case) and not _is_of_language(case) and bool(case.lead.calls),
            ),
            lambda case: f"{_use_less(case)}{_lacks(case)}",
        ),
        lambda case: case.kind is LogClass.OOM,
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "/w/train.py", line 40, in main\n'
                "    trainer.fit(model)\n"
                '  File "/e/lib/python3.11/site-packages/torch/optim/adamw.py", line 189, in step\n'
                "    loss = closure()\n"
                '  File "/e/lib/python3.11/site-packages/lightning/pytorch/plugins/precision/precision.py", line 108, in'
                " _wrap_closure\n"
                "    closure_result = closure()\n"
                '  File "/w/model.py", line 20, in training_step\n'
                "    out = self.net(batch)\n"
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 112.00 MiB. GPU 0 has a total capacity of"
                " 23.64 GiB of which 60.00 MiB is free. Including non-PyTorch memory, this process has 22.50 GiB memory in"
                " use. Of the allocated memory 21.90 GiB is allocated by PyTorch, and 120.00 MiB is reserved by PyTorch"
                " but unallocated.\n"
            ),
            Example(
                "$ torchrun train.py --per_device_train_batch_size 1 --gradient_checkpointing True\n"
                "Traceback (most recent call last):\n"
                '  File "/w/train.py", line 40, in main\n'
                "    loss = net(x)\n"
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 112.00 MiB. GPU 0 has a total capacity of"
                " 23.64 GiB of which 60.00 MiB is free. Including non-PyTorch memory, this process has 23.50 GiB memory in"
                " use. Of the allocated memory 22.90 GiB is allocated by PyTorch, and 120.00 MiB is reserved by PyTorch"
                " but unallocated.",
                says=("the batch is 1 already), or shard",),
            ),
        ),
    ),
    Failure(
        id="memory.cache_flushes",
        kind=LogClass.NEAR_LIMIT,
        what="The allocator returns its cache to the driver within steps, because the memory is nearly full.",
        signs=(sign("pytorch allocator cache flushes since last step"),),
        event=EventKind.KNOWN,
        tier=Tier.BROKEN_NUMBERS,
        headline="Memory is nearly full: the allocator empties its cache within steps, which makes them slow",
        why="each flush frees cached blocks and asks the driver for new ones, which stops all streams of the GPU",
        next=(
            "use less memory: a smaller batch or sequence, more recomputation, offload",
            Advice(f"or set {EXPANDABLE_SEGMENTS}", lambda case: not _has_expandable_segments(case)),
            "if ranks flush at different steps they wait for each other: call get_accelerator().empty_cache() (or"
            " torch.cuda.empty_cache()) on all ranks at the same step",
        ),
        examples=(
            Example(
                "[2024-09-17 03:43:51,221] [WARNING] [stage3.py:2069:step] 4 pytorch allocator cache flushes since last step."
                " this happens when there is high memory pressure and is detrimental to performance.",
                source="deepspeed/runtime/zero/stage3.py",
                says=("empty_cache",),
            ),
        ),
        knowledge="the warning of DeepSpeed's ZeRO-3 optimizer",
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
