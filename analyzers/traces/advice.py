"""Write advice on opportunities to save time: what takes the time, what to change, and how to check that it helped."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from analyzers.report import Evidence, Finding, Severity
from analyzers.traces.advice_words import (
    BLOCKING_LAUNCHES,
    COMPILED_ALREADY,
    FLOAT32_ON_AMD,
    OPTIMIZER,
    PERHAPS_PAGEABLE,
    TO_PAGEABLE,
    WORDS,
    ZERO_GRAD,
    Words,
)
from analyzers.traces.columns import BACKWARD, GC, PHASE_NAMES, phase_of
from analyzers.traces.evidence import has_graphs, is_amd, less_fragmentation
from analyzers.traces.model import Advice, FallbackReason, NamedTime, Opportunity, OpportunityKind, RankTrace
from analyzers.traces.stragglers import CAUSE_SHARE, Cause
from analyzers.words import (
    bandwidth,
    duration_ns,
    kernel_name,
    percent,
    quantity,
    share,
    size,
    times,
    uncapitalised,
    user_function,
)

_FIRST_BATCH = (
    "Most likely this is the first batch of an epoch, for which new workers start and load. Set persistent_workers=True"
    " in the DataLoader, so that they stay, and keep one iterator for all epochs if you can. More workers help only if"
    " the other steps wait, too."
)
_PAUSE = (
    "A pause in so few steps is typical of garbage collection, a checkpoint, an evaluation or logging: look what the"
    " program does in that step. "
)

_ON_HOST = (
    "The host itself computes in {name} meanwhile, on tensors in its memory (an offloaded optimizer, or metrics). Let"
    " the device do this, or compute on the host beside the next forward pass."
)
_PHASE_ADVICE = {
    GC: "Call gc.disable() once before the loop, and gc.collect() every n steps, on all ranks in the same step.",
    "checkpoint": "Save checkpoints asynchronously (torch.distributed.checkpoint.async_save), which only copies the"
    " state in the loop, or less often.",
    "eval": "Evaluate less often, or on fewer samples. If evaluation is no part of what you want to measure, leave it"
    " out of the recording.",
}
"""{phase that takes most of the host's time while the device waits: what to change}."""
_ONLY_SOMETIMES = "Make the call {call} only every n steps"
_REMEDIES = {
    ("aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::index"): "Avoid {call}, whose result has a size"
    " that the host must read: use torch.where and fixed sizes, and for experts one grouped matrix product",
    ("aten::to", "aten::_to_copy", "aten::copy_", "aten::cpu"): "Let the copy {call} not wait: copy to pinned memory"
    " with non_blocking=True, and use the result some steps later",
    (
        "cudaDeviceSynchronize",
        "hipDeviceSynchronize",
    ): "Remove the call {call} (torch.cuda.synchronize()) from the step",
}
"""{operators or calls that wait for the device: what to do about them}; `{call}` stands for the call and its place."""


def _call_before(one: Opportunity) -> str:
    """Return the call that emptied the launch queue before the waits, with its place in the user's code; or ''."""
    if not one.after:
        return ""
    name, *place = one.after
    return f"{name.name} in {user_function(place[0].name, 60)}" if place else name.name


def emptied_sentence(one: Opportunity) -> str:
    """Return a sentence that the waits follow a call that emptied the queue, beginning with a space; '' if not so.

    A wait in few steps is longer than any queue, so there the call does not matter.
    """
    call = "" if "in_steps" in one.measures else _call_before(one)
    return (
        f" Most of these waits follow {call}, in which the host waited until the device had ended all its work: so no"
        " kernel was left in the queue."
        if call
        else ""
    )


def _ahead_advice(one: Opportunity) -> str:
    """Return the advice against the call that emptied the queue, ending with a space; '' if there is none.

    A pause in few steps is too long for any queue, so there the call does not matter.
    """
    if not one.after or "in_steps" in one.measures:
        return ""
    remedy = next((text for names, text in _REMEDIES.items() if one.after[0].name in names), _ONLY_SOMETIMES)
    return (
        f"{remedy.format(call=_call_before(one))}: then the host launches kernels ahead, which hides its other work. "
    )


def _few_steps_advice(one: Opportunity) -> str:
    return _PAUSE if "in_steps" in one.measures and one.kind is OpportunityKind.PYTHON else ""


def _host_work_advice(account: RankTrace, one: Opportunity) -> str:
    """Return what to change about the work of the host that takes most of the waiting, '' if the trace names none."""
    mostly = one.names[0] if one.names else None
    if mostly is None or 2 * mostly.total_ns < one.taken_ns * max(1, account.steps):
        return ""
    if mostly.name.startswith("aten::"):
        return _ON_HOST.format(name=mostly.name)
    return _PHASE_ADVICE.get(PHASE_NAMES[phase_of(mostly.name)], "")


def _facts_around(account: RankTrace, one: Opportunity) -> Iterator[str]:
    if "in_steps" in one.measures:
        few, worst = int(one.measures["in_steps"]), int(one.measures["longest_step"])
        yield f"nearly all of it in {few} of {quantity(account.steps, 'step')}, most in step {worst}"
    if one.after:
        before = one.after[0]
        part = share(before.total_ns, one.taken_ns * max(1, account.steps))
        yield (
            f"{times(before.count)} it followed {_call_before(one)}, where the host waited for the device:"
            f" {duration_ns(before.total_ns)} in total, {part} of it"
        )


TITLE = "scaled_dot_product_attention takes its math kernel, which is not fused"


class Reason(NamedTuple):
    """The texts on one reason for the math kernel: what the trace shows, and what to change."""

    why: str
    next: str


REASONS = {
    FallbackReason.DIMENSIONS: Reason(
        "Its inputs do not have four dimensions, which the fused kernels need.",
        "Give it inputs of four dimensions: batch, heads, length, head dimension. For one head, add a dimension with"
        " .unsqueeze(1) and remove it afterwards.",
    ),
    FallbackReason.TYPE: Reason(
        "No fused kernel takes the types of its inputs: q, k and v must have one type, and on a GPU float64 is none of"
        " them.",
        "Cast q, k and v to one type: bfloat16 or float16, else float32.",
    ),
    FallbackReason.DROPOUT: Reason(
        "It is called with a dropout, which the fused kernel of a CPU does not have. The kernels of a GPU have it.",
        "On a CPU set the dropout of the attention to 0 (dropout_p, or attention_dropout of the model). Keep it if the"
        " job moves to a GPU.",
    ),
    FallbackReason.VALUE_SIZE: Reason(
        "The head dimension of its values differs from that of its queries and keys.",
        "Use one head dimension for q, k and v: pad the smaller one with zeros, and cut the result. Padded q and k need"
        " scale=1/sqrt(the size without zeros).",
    ),
    FallbackReason.HEAD_SIZE: Reason(
        "Its head dimension is not a multiple of 8 (16-bit types) or 4 (float32), and flash attention cannot take the"
        " call because of the mask, of float32 or of heads above 256.",
        "Use a head dimension that is a multiple of 8: pad q, k and v with zeros, set scale=1/sqrt(the size without"
        " zeros), and cut the result.",
    ),
    FallbackReason.GROUPED: Reason(
        "It is called with enable_gqa=True, which only flash attention has. The mask or float32 inputs rule that out.",
        "Use bfloat16 or float16 inputs and is_causal=True in place of a mask, or repeat k and v with"
        " .repeat_interleave() and leave enable_gqa out.",
    ),
    FallbackReason.MASK_GRADIENT: Reason(
        "It is called with a mask of numbers. The fused kernel of a CPU takes it only if the mask needs no gradient.",
        "If the mask is a constant, detach it (mask.detach()). A learned bias needs its gradient: compute it with"
        " torch.nn.attention.flex_attention and a score_mod.",
    ),
    FallbackReason.MASK: Reason(
        "It is called with a mask, which flash attention does not take. Memory-efficient attention takes masks if it is"
        " switched on.",
        "Use is_causal=True in place of a causal mask, and torch.nn.attention.flex_attention for others. Look for"
        " sdpa_kernel(...) and torch.backends.cuda.enable_mem_efficient_sdp(False).",
    ),
}
_SETTINGS = (
    "Look for settings that forbid the fused kernels, such as sdpa_kernel(SDPBackend.MATH) and"
    " torch.backends.cuda.enable_flash_sdp(False), and for inputs whose last dimension is not contiguous (call"
    " .contiguous() after a transposition)."
)
_FITS = "The recorded sizes, types and values fit a fused kernel, so a setting or the layout of the inputs forbids it."
_WARNS = (
    "Call it once under sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]): PyTorch then warns"
    " why each kernel is not used."
)
_SETTING_ON_CPU, _SETTING_ON_GPU = Reason(_FITS, _SETTINGS), Reason(_FITS, f"{_SETTINGS} {_WARNS}")
_UNKNOWN_ON_CPU = Reason(
    "The trace does not show the reason, as it has no sizes and types.",
    f"Record with record_shapes=True. Reasons on a CPU are dropout_p above 0, inputs without four dimensions and a mask"
    f" that needs a gradient. {_SETTINGS}",
)
_UNKNOWN_ON_GPU = Reason(
    "The trace does not show the reason, as it has no sizes and types.",
    f"{_WARNS} Usual reasons are a setting such as sdpa_kernel(SDPBackend.MATH), float64, inputs"
    " without four dimensions or with a last dimension that is not contiguous, enable_gqa=True with a mask or in"
    " float32, and deterministic algorithms.",
)


def _fallback_words(reasons: Sequence[FallbackReason], *, on_gpu: bool) -> Reason:
    """Return the texts on the reasons for which attention takes its math kernel on a GPU or on a CPU."""
    others = {
        FallbackReason.SETTING: _SETTING_ON_GPU if on_gpu else _SETTING_ON_CPU,
        FallbackReason.UNKNOWN: _UNKNOWN_ON_GPU if on_gpu else _UNKNOWN_ON_CPU,
    }
    texts = [REASONS.get(reason) or others[reason] for reason in reasons]
    return Reason(" ".join(text.why for text in texts), " ".join(text.next for text in texts))


_TELLING = 0.05
"""The share of a step's time that an opportunity must be able to save to become a finding."""
WARNING = 0.1
"""The share of a step's time that an opportunity must be able to save for its finding to be a warning."""
CONFIDENCE = 0.7
_NAME_AT_MOST = 120
REPORTED_ELSEWHERE = {
    OpportunityKind.EXPOSED_COMMUNICATION, OpportunityKind.ALLOCATION, OpportunityKind.COMPILATION,
    OpportunityKind.IMBALANCE,
}  # fmt: skip
"""The kinds of opportunities that other findings report, such as trace.driver_allocations and trace.straggler."""
WAITS = tuple(OpportunityKind)[: tuple(OpportunityKind).index(OpportunityKind.LAUNCH) + 1]
"""The kinds of opportunities in which the device waits for the host."""
_IN_HOST_BOUND = {*WAITS} - {OpportunityKind.BUFFER_BROADCAST}
"""The waits that `trace.host_bound` reports if they are large together; the broadcast of buffers has its own remedy."""


TF32 = (
    " or bfloat16 parameters, or let float32 products use TF32: torch.set_float32_matmul_precision('high') and"
    " torch.backends.cudnn.allow_tf32 = True"
)
_TF32_ON_AMD = (
    " or bfloat16 parameters. On an MI300 float32 products can use TF32 instead:"
    " torch.set_float32_matmul_precision('high'), with HIPBLASLT_ALLOW_TF32=1 in the environment"
)
_FLOAT16 = " with dtype=torch.float16 and a torch.amp.GradScaler: the tensor cores of this GPU support no other type"
_IMBALANCE_CHECKS = {
    Cause.GC: "Call gc.disable() on all ranks for some steps. If garbage collection is the cause, the delay is gone.",
    Cause.DATA: "Use the same batch in every step on all ranks. If loading is the cause, the delay is gone.",
    Cause.CHECKPOINT: "Leave checkpoints out for some steps. If they are the cause, the delay is gone.",
    Cause.EVAL: "Leave the evaluation out for some steps. If it is the cause, the delay is gone.",
    Cause.LOG: "Leave logging out for some steps. If it is the cause, the delay is gone.",
}
"""{main cause of an imbalance: how to check it}, for causes that moving the rank's data or host would not show."""
_EVENTS = dict.fromkeys(WAITS, "interval without work") | {
    OpportunityKind.FLOAT64: "kernel",
    OpportunityKind.FLOAT32: "kernel",
    OpportunityKind.MISALIGNED: "kernel",
    OpportunityKind.ELEMENTWISE: "kernel",
    OpportunityKind.UNFUSED_ATTENTION: "kernel",
    OpportunityKind.LAYOUT_COPIES: "kernel",
    OpportunityKind.PAGEABLE_COPIES: "copy",
    OpportunityKind.EXPOSED_COPIES: "copy",
    OpportunityKind.CROSS_ENTROPY: "kernel",
    OpportunityKind.SMALL_COLLECTIVES: "collective",
    OpportunityKind.BUS_BANDWIDTH: "collective",
}
"""{kind of opportunity: what its `count` counts}; for kinds that are not listed, it counts events."""
ACTIVITIES = {
    OpportunityKind.DATA_LOADER: "waiting for the data loader",
    OpportunityKind.ALLOCATION: "allocating and freeing memory in the driver",
    OpportunityKind.COMPILATION: "compiling or loading code",
    OpportunityKind.PYTHON: "other work",
    OpportunityKind.BUFFER_BROADCAST: "broadcasting DDP's buffers",
    OpportunityKind.SYNCHRONISING_CALL: "calls that wait for the device",
    OpportunityKind.LAUNCH: "running operators and launching kernels",
}
"""{kind of waiting (`WAITS`): what the host does meanwhile}, as a noun."""
_BLOCKING_AT_LEAST, _BLOCKING_SHARE = 10, 0.9
"""How many long kernels, and which share of them, must end before their launching call returns for it to block."""
_MAINLY = 0.5
"""The share of the time of elementwise kernels from which on the part of the step that launches them has its text."""
_FUSED_ON_CPU = "It helped if the next trace has aten::_scaled_dot_product_flash_attention_for_cpu."


def advices(accounts: Sequence[RankTrace], others: Iterable[tuple[RankTrace, Opportunity]] = ()) -> list[Advice]:
    """Return an `Advice` for each kind of opportunity to save time, the largest first.

    `accounts` are the results of all devices and hosts. `others` are further opportunities, as (device or host,
    opportunity). The numbers in an advice are those of the rank that can save most.
    """
    by_kind: dict[OpportunityKind, list[tuple[RankTrace, Opportunity]]] = {}
    own = [(account, one) for account in accounts for one in account.opportunities]
    for account, one in [*own, *others]:
        by_kind.setdefault(one.kind, []).append((account, one))
    rows = [advice(same) for same in by_kind.values()]
    return sorted(rows, key=lambda row: (-row.saved_ns, row.kind))


def advice(same: Sequence[tuple[RankTrace, Opportunity]]) -> Advice:
    """Return the advice for one kind of opportunity, with the numbers of the device or host that can save most.

    `same` lists all devices or hosts with this opportunity, each as (device or host, opportunity).
    """
    account, most = max(same, key=lambda pair: pair[1].saved_ns)
    words = _words_on(account, most)
    return Advice(
        **msgspec.structs.asdict(most),
        rank=account.rank,
        device=account.device,
        ranks=sorted({other.rank for other, _ in same if other.rank is not None}),
        title=words.title,
        why=f"{words.why}{emptied_sentence(most)}{stack_warning(account, most)}",
        next=f"{stack_advice(account, most)}{_next_text(account, most)}",
        check=_check_of(account, most).format(
            types="f16 or h884" if _has_only_float16(account) else "f16, h884, bf16 or tf32",
            size=size(most.measures.get("message_bytes", 0)),
        ),
        evidence=[Evidence(text=text, source=account.path) for text in evidence(account, most)],
    )


def _words_on(account: RankTrace, one: Opportunity) -> Words:
    """Return the texts about an opportunity; attention that is not fused has others if it calls PyTorch's operator."""
    words = _special_words(account, one) or WORDS[one.kind]
    if not one.fallbacks:
        return words
    on_gpu = account.device is not None
    reason = _fallback_words(one.fallbacks, on_gpu=on_gpu)
    check = words.check if on_gpu else _FUSED_ON_CPU
    return Words(TITLE, f"{reason.why} {words.why}", reason.next, check)


def _special_words(account: RankTrace, one: Opportunity) -> Words | None:
    mostly = one.names[0].name if one.names else ""
    if one.kind is OpportunityKind.PAGEABLE_COPIES and "DtoH" in mostly:
        return TO_PAGEABLE
    if one.kind is OpportunityKind.PAGEABLE_COPIES and is_amd(account):
        return PERHAPS_PAGEABLE
    if one.kind is OpportunityKind.FLOAT32 and is_amd(account):
        return FLOAT32_ON_AMD
    if one.measures.get("in_zero_grad", 0) > _MAINLY:
        return ZERO_GRAD
    return OPTIMIZER if one.measures.get("in_optimizer", 0) > _MAINLY else None


def _check_of(account: RankTrace, one: Opportunity) -> str:
    usual = _words_on(account, one).check
    if one.kind is not OpportunityKind.IMBALANCE or not one.names:
        return usual
    main = one.names[0]
    is_main = main.total_ns >= CAUSE_SHARE * one.taken_ns * max(1, account.steps)
    return _IMBALANCE_CHECKS.get(Cause(main.name), usual) if is_main else usual


def _next_text(account: RankTrace, one: Opportunity) -> str:
    if whole := _special_advice(account, one):
        return whole
    compiled = one.kind is OpportunityKind.LAUNCH and bool(account.compiled and account.compiled.calls)
    words = COMPILED_ALREADY if compiled else _words_on(account, one).next
    return f"{_ahead_advice(one)}{_few_steps_advice(one)}{words}{_device_advice(account, one.kind)}"


def _special_advice(account: RankTrace, one: Opportunity) -> str:
    """Return what to change if the trace shows why the host is late; '' if the usual advice on the kind holds."""
    if "in_steps" in one.measures and one.kind is OpportunityKind.DATA_LOADER:
        return _FIRST_BATCH
    if one.kind is OpportunityKind.LAUNCH and _launches_block(account):
        return BLOCKING_LAUNCHES
    return _host_work_advice(account, one) if one.kind is OpportunityKind.PYTHON else ""


def _launches_block(account: RankTrace) -> bool:
    """Return whether nearly all launching calls return only when their kernel has ended, as for debugging."""
    calls = account.launches
    return calls is not None and calls.long >= _BLOCKING_AT_LEAST and calls.outlasting >= _BLOCKING_SHARE * calls.long


def _device_advice(account: RankTrace, kind: OpportunityKind) -> str:
    match kind:
        case OpportunityKind.FLOAT32:
            return _lower_precision(account)
        case OpportunityKind.ALLOCATION:
            return f" {less_fragmentation(account)}"
        case OpportunityKind.LAUNCH:
            graphs = ", CUDA graphs" if has_graphs(account) else ""
            trains = any(phase.name in (BACKWARD, "optimizer") for phase in account.phases)
            return f"{graphs}{', a foreach or fused optimizer,' if trains else ''} or a larger batch."
        case _:
            return ""


def _lower_precision(account: RankTrace) -> str:
    """Return the end of the sentence that advises tensor cores: the number formats that the device supports.

    NVIDIA devices have TF32 and bfloat16 since the A100. On AMD devices bfloat16 came before TF32, which PyTorch has
    for the MI300, and only if an environment variable allows it.
    """
    if _has_only_float16(account):
        return _FLOAT16
    if is_amd(account):
        return _TF32_ON_AMD if "MI3" in account.device_name else " or bfloat16 parameters"
    return TF32


def _has_only_float16(account: RankTrace) -> bool:
    return any(name in account.device_name for name in ("V100", "T4"))


def stack_warning(account: RankTrace, one: Opportunity) -> str:
    """Return the sentence that recording Python stacks slowed the host down; empty if stacks did not matter.

    They matter if they were recorded and the opportunity `one` is about the device waiting for the host.
    """
    if one.kind not in WAITS or not account.python_stacks:
        return ""
    return (
        " Python stacks were recorded (with_stack=True). This slows the host down, often to half of its speed, so the"
        " true share is probably smaller."
    )


def stack_advice(account: RankTrace, one: Opportunity) -> str:
    again = "First record again without with_stack=True, and look whether the device still waits. "
    return again if stack_warning(account, one) else ""


def evidence(account: RankTrace, one: Opportunity) -> Iterator[str]:
    """Yield texts with the numbers of an opportunity, then with the events that belong to it."""
    steps = f" in {quantity(account.steps, 'step')}" if account.steps else ""
    saved = f"at most {duration_ns(one.saved_ns)} ({percent(one.saved_share)} of the step) of it can be saved"
    whole = f"{percent(one.saved_share)} of the step; at best all of it can be saved"
    rest = whole if one.saved_ns == one.taken_ns else saved
    yield f"{counted(one)}{steps}: {duration_ns(one.taken_ns)} per step, {rest}"
    if "bus_bytes_per_s" in one.measures:
        expected = one.measures["expected_bytes_per_s"]
        reached = bandwidth(one.measures["bus_bytes_per_s"])
        yield f"bus bandwidth: {reached} reached, about {bandwidth(expected)} expected of the links"
    if "bytes" in one.measures:
        yield f"half of them are smaller than {size(one.measures['bytes'])}"
    yield from _facts_around(account, one)
    yield from (_name_with_time(name, steps) for name in one.names)


def counted(one: Opportunity) -> str:
    """Return a text for the number of events of an opportunity, such as `3 kernels` or `12 intervals without work`."""
    noun, _, end = _EVENTS.get(one.kind, "event").partition(" ")
    return f"{quantity(one.count, noun)} {end}".rstrip()


def _name_with_time(name: NamedTime, steps: str) -> str:
    return f"{kernel_name(name.name, _NAME_AT_MOST)}: {times(name.count)}{steps}, {duration_ns(name.total_ns)} in total"


def opportunity_findings(rows: Sequence[Advice], host_bound: bool) -> Iterator[Finding]:
    """Yield a finding for each advice in `rows` that saves enough, unless another finding already reports it.

    `host_bound` says that the finding `trace.host_bound` exists. It already reports the opportunities in which the
    device waits for the host.
    """
    elsewhere = REPORTED_ELSEWHERE | _IN_HOST_BOUND if host_bound else REPORTED_ELSEWHERE
    for row in rows:
        if row.saved_share >= _TELLING and row.kind not in elsewhere:
            yield _opportunity_finding(row)


def _opportunity_finding(row: Advice) -> Finding:
    return Finding(
        id=f"trace.{row.kind}",
        severity=Severity.WARNING if row.saved_share >= WARNING else Severity.INFO,
        title=f"{row.title}: a step could be up to {duration_ns(row.saved_ns)} ({percent(row.saved_share)}) shorter",
        why=row.why,
        next=f"{row.next.rstrip('.')}. {check_text(row.check)}",
        ranks=row.ranks,
        evidence=row.evidence,
        confidence=CONFIDENCE,
    )


def check_text(check: str) -> str:
    """Return the last sentence of a finding: how to see whether the advice helped.

    `check` is already such a sentence if it begins with `It helped` or `To see`; otherwise it is an instruction.
    """
    return check if check.startswith(("It helped", "To see")) else f"To check: {uncapitalised(check)}"


def wait_advice(account: RankTrace, start_up: str) -> str | None:
    """Return advice on what the host does while the device waits longest; None if this is not known.

    `start_up` is the advice on the start of CUDA. It is returned if the host allocates memory during this wait in a
    recording without steps, because this is most likely the start of CUDA.
    """
    wait = largest_wait(account)
    if wait and wait.kind is OpportunityKind.ALLOCATION and not account.steps:
        return start_up
    return _next_text(account, wait) if wait else None


def largest_wait(account: RankTrace) -> Opportunity | None:
    return next((one for one in account.opportunities if one.kind in WAITS), None)


def wait_parts(account: RankTrace) -> list[str]:
    """Return a list with a text on what the host did while the device waited for it; empty if this is not known.

    The text has shares of the waiting instead of times. The reason: the waits before the first and after the last
    kernel of a step are included, but do not belong to the idle time between kernels.
    """
    waits = [one for one in account.opportunities if one.kind in WAITS]
    total = sum(one.taken_ns for one in waits)
    parts = [f"{ACTIVITIES[one.kind]} {share(one.taken_ns, total)}" for one in waits]
    if not parts:
        return []
    return [f"what the host did while the device waited for it: {', '.join(parts)}", *_facts_around(account, waits[0])]
