"""Write advice on opportunities to save time: what takes the time, what to change, and how to check that it helped."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from analyzers.report import Evidence, Finding, Severity
from analyzers.traces.model import RankTrace
from analyzers.traces.opportunities.account import SHARE_AT_LEAST
from analyzers.traces.opportunity_model import Advice, NamedTime, Opportunity, OpportunityKind
from analyzers.words import bandwidth, duration_ns, percent, quantity, share, size

TELLING = 0.05
"""The share of a step's time that an opportunity must be able to save to become a finding."""
WARNING = 0.1
"""The share of a step's time from which on a finding about an opportunity is a warning."""
CONFIDENCE = 0.7
EQUAL_WAITS = 0.02
"""The causes of waiting and the gaps between kernels may differ by this share before a sentence explains it."""
NAME_AT_MOST = 120
TOLD_ELSEWHERE = {
    OpportunityKind.EXPOSED_COMMUNICATION, OpportunityKind.ALLOCATION, OpportunityKind.COMPILATION,
    OpportunityKind.IMBALANCE,
}  # fmt: skip
"""Kinds that have findings of their own, such as trace.driver_allocations and trace.straggler."""
WAITS = tuple(OpportunityKind)[: tuple(OpportunityKind).index(OpportunityKind.LAUNCH) + 1]
"""Kinds for which the device waits for the host; `trace.host_bound` reports them if they are large together."""


class Words(NamedTuple):
    """The texts about one kind of opportunity: a title, its meaning, what to change, and how to check the effect."""

    title: str
    why: str
    next: str
    check: str


WORDS = {
    OpportunityKind.DATA_LOADER: Words(
        "The step waits for the data loader",
        "The device had no work while the host was in the data loader.",
        "Raise num_workers and prefetch_factor, set persistent_workers=True, and move work on the samples into the"
        " workers.",
        "Use the same batch in every step: the step gets shorter by the time that the loader takes.",
    ),
    OpportunityKind.ALLOCATION: Words(
        "The device waits for allocations by the driver",
        "The device had no work while the host was in calls of the driver that allocate and free memory.",
        "Leave more free memory, keep shapes steady, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
        "torch.cuda.memory_stats()['num_alloc_retries'] no longer grows from step to step.",
    ),
    OpportunityKind.COMPILATION: Words(
        "The device waits while code is compiled or loaded",
        "The device had no work while the host compiled, or stood in the first launch of a kernel, which loads it.",
        "Begin the recording after some warm-up steps. If it goes on, set TORCH_LOGS=recompiles to see why, and mark"
        " sizes that vary with torch._dynamo.mark_dynamic.",
        "Record some steps later: without new compilations it is the warm-up, which costs nothing afterwards.",
    ),
    OpportunityKind.PYTHON: Words(
        "The device waits while the host does other work",
        "The device had no work while the host was in Python code, garbage collection, logging or checkpoints, or in"
        " one operator for long.",
        "Move that work out of the loop, do it every n steps, or in a thread; gc.disable() and a gc.collect() every n"
        " steps keep collections out of the step.",
        "Leave the work out for a few steps and compare their times.",
    ),
    OpportunityKind.SYNCHRONISING_CALL: Words(
        "Calls that synchronise let the device run dry",
        "After each of them the host has to launch before the device can go on.",
        "Remove .item(), .cpu(), print(tensor) and boolean masks from the step, or do them every n steps; copy with"
        " non_blocking=True.",
        "torch.cuda.set_sync_debug_mode('warn') prints no more lines in the step.",
    ),
    OpportunityKind.LAUNCH: Words(
        "The device waits for the host to launch kernels",
        "The host runs operators, but needs longer for each than the device.",
        "Use torch.compile or CUDA graphs, foreach or fused optimizers, or a larger batch.",
        "Double the batch: a step that takes as long as before was bound by launching.",
    ),
    OpportunityKind.UNFUSED_ATTENTION: Words(
        "Attention runs as separate products and softmax",
        "Scores of the size of the sequence squared are written to memory and read again by each kernel.",
        "Call torch.nn.functional.scaled_dot_product_attention with 16-bit inputs, is_causal instead of a dense mask,"
        " a head dimension of 256 at most, and no need_weights.",
        "The next trace has kernels with flash, fmha or sdpa in their name, and no softmax of that size.",
    ),
    OpportunityKind.RECOMPUTATION: Words(
        "Activation checkpointing computes again",
        "Forward operators run a second time inside the backward.",
        "If memory allows it, checkpoint fewer layers, or selectively: keep the results of products and attention.",
        "workbench inspect --what-if ac=selective of a memory snapshot says what that needs.",
    ),
    OpportunityKind.FLOAT32: Words(
        "Matrix products and convolutions run in float32 without tensor cores",
        "By their names these kernels compute in float32 on the ordinary cores, which are some 8 times slower.",
        "Use torch.autocast",
        "The next trace has matrix kernels whose names say bf16, f16, h884 or tf32; the loss curve stays about the"
        " same.",
    ),
    OpportunityKind.MISALIGNED: Words(
        "Products have sizes that tensor cores read badly",
        "A size is no multiple of 8 elements, and the product is less than half as fast as the others.",
        "Pad the vocabulary, hidden sizes and heads to multiples of 64, at least of 8.",
        "Multiply padded matrices of these sizes in a loop and compare the rates.",
    ),
    OpportunityKind.LAYOUT_COPIES: Words(
        "Kernels only change the layout of tensors",
        "They convert between channels first and channels last around convolutions.",
        "Convert the model and its inputs once: .to(memory_format=torch.channels_last).",
        "The next trace has no nchwToNhwc and nhwcToNchw.",
    ),
    OpportunityKind.PAGEABLE_COPIES: Words(
        "Copies from pageable memory hold up the device",
        "Nothing is computed beside them, and the host stands still meanwhile.",
        "Set pin_memory=True in the DataLoader and copy with .to(device, non_blocking=True).",
        "The next trace says Pinned instead of Pageable, and the copies run beside kernels.",
    ),
    OpportunityKind.ELEMENTWISE: Words(
        "Consecutive elementwise kernels could be fused",
        "Each of them reads and writes its whole tensor in device memory; a fused kernel does so once for all of them.",
        "Use torch.compile for the modules that launch them, a fused norm (torch.nn.functional.rms_norm), and"
        " fused=True in the"
        " optimizer.",
        "Compile one layer and compare its time on the device.",
    ),
    OpportunityKind.SMALL_COLLECTIVES: Words(
        "Many small collectives run one after the other",
        "Each takes the latency of the network, whatever its size.",
        "Put them together: larger buckets (bucket_cap_mb), one call for a list of tensors, fewer logged metrics.",
        "The number of collectives a step falls, their bytes stay.",
    ),
    OpportunityKind.BUS_BANDWIDTH: Words(
        "Collectives are far below the speed of the links",
        "Even the shortest one of its size is. On one rank alone this cannot be told from waiting for a late rank.",
        "Look at NCCL_DEBUG=INFO for the transport, and compare the traces of all ranks.",
        "Run nccl-tests with this size between the same devices.",
    ),
    OpportunityKind.EXPOSED_COMMUNICATION: Words(
        "The step waits for communication",
        "Nothing is computed beside it, and what comes next was launched already.",
        "Prefetch the next layer (FSDP2: set_modules_to_forward_prefetch), reduce gradients in buckets during the"
        " backward (DDP: bucket_cap_mb).",
        "Let one rank run alone without communication: its step is the shortest that overlap can give.",
    ),
    OpportunityKind.IMBALANCE: Words(
        "The other ranks wait for one",
        "Its own work between collectives is longer than theirs.",
        "Find what it does more; the finding trace.straggler says which part.",
        "Give its work or its host to another rank, and see whether the delay moves with it.",
    ),
}  # fmt: skip
TF32 = (
    " or bfloat16 parameters, or let float32 products use TF32: torch.set_float32_matmul_precision('high') and"
    " torch.backends.cudnn.allow_tf32 = True"
)
FLOAT16 = " with dtype=torch.float16 and a torch.amp.GradScaler: the tensor cores of this device know no other type"
EVENTS = dict.fromkeys(WAITS, "wait") | {
    OpportunityKind.FLOAT32: "kernel",
    OpportunityKind.MISALIGNED: "kernel",
    OpportunityKind.ELEMENTWISE: "kernel",
}
"""{kind of opportunity: what its count refers to}: waits of the device, or kernels; other kinds count events."""
AMPERE = 8


def advices(accounts: Sequence[RankTrace], others: Iterable[tuple[RankTrace, Opportunity]] = ()) -> list[Advice]:
    """Return an `Advice` for each kind of opportunity to save time, the largest first.

    The numbers in an advice are of the rank that can save most.
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
    words = WORDS[most.kind]
    return Advice(
        **msgspec.structs.asdict(most),
        rank=account.rank,
        device=account.device,
        ranks=sorted({other.rank for other, _ in same if other.rank is not None}),
        title=words.title,
        why=words.why + stack_warning(account, most),
        next=words.next + (lower_precision(account) if most.kind is OpportunityKind.FLOAT32 else ""),
        check=words.check,
        evidence=[Evidence(text=text, source=account.path) for text in evidence(account, most)],
    )


def lower_precision(account: RankTrace) -> str:
    """Return the end of the advice to use tensor cores, which depends on the device's name.

    NVIDIA devices have TF32 and bfloat16 since the A100; those of AMD have bfloat16 before they have TF32.
    """
    if any(name in account.device_name for name in ("V100", "T4")):
        return FLOAT16
    has_tf32 = not any(name in account.device_name for name in ("Radeon", "MI2"))
    return TF32 if has_tf32 else " or bfloat16 parameters"


def stack_warning(account: RankTrace, one: Opportunity) -> str:
    """Return the sentence that recording Python stacks slowed the host down; empty if none were recorded.

    It is also empty if the opportunity `one` is not about the device waiting for the host, which slow Python prolongs.
    """
    if one.kind not in WAITS or not account.python_stacks:
        return ""
    return (
        " Python stacks were recorded, which slows the host down, often to half of its speed: record"
        " without the profiler's with_stack=True first, to see the true size."
    )


def evidence(account: RankTrace, one: Opportunity) -> Iterator[str]:
    """Yield texts with the numbers of an opportunity, then with the events that belong to it."""
    steps = f" in {quantity(account.steps, 'step')}" if account.steps else ""
    counted = quantity(one.count, EVENTS.get(one.kind, "event"))
    yield (
        f"{counted}{steps} {'takes' if one.count == 1 else 'take'} {duration_ns(one.taken_ns)} a step, of which at most"
        f" {duration_ns(one.saved_ns)} ({percent(one.saved_share)} of the step) can be saved"
    )
    if "bus_bytes_per_s" in one.measures:
        expected = one.measures["expected_bytes_per_s"]
        yield f"bus bandwidth {bandwidth(one.measures['bus_bytes_per_s'])} of about {bandwidth(expected)}"
    if "bytes" in one.measures:
        yield f"half of them are smaller than {size(one.measures['bytes'])}"
    yield from (name_with_time(name, steps) for name in one.names)


def name_with_time(name: NamedTime, steps: str) -> str:
    """Return the name of events with their number and total time; `steps` is such as ` in 5 steps`."""
    text = name.name if len(name.name) <= NAME_AT_MOST else f"{name.name[: NAME_AT_MOST - 1]}…"
    return f"{text}: {quantity(name.count, 'time')}{steps}, {duration_ns(name.total_ns)}"


def opportunity_findings(rows: Sequence[Advice], host_bound: bool) -> Iterator[Finding]:
    """Yield a finding for each opportunity that is large enough, unless another finding already reports it.

    `host_bound`: the finding `trace.host_bound` was made, which reports all opportunities that are waits for the host.
    """
    for row in rows:
        told = row.kind in TOLD_ELSEWHERE or (host_bound and row.kind in WAITS)
        if row.saved_share >= TELLING and not told:
            yield opportunity_finding(row)


def opportunity_finding(row: Advice) -> Finding:
    """Return a finding about an opportunity; its title says how much time of each step can be saved at most."""
    return Finding(
        id=f"trace.{row.kind}",
        severity=Severity.WARNING if row.saved_share >= WARNING else Severity.INFO,
        title=f"{row.title}: up to {duration_ns(row.saved_ns)} ({percent(row.saved_share)}) of each step",
        why=row.why,
        next=f"{row.next.rstrip('.')}. To check: {row.check[0].lower()}{row.check[1:]}",
        ranks=row.ranks,
        evidence=row.evidence,
        confidence=CONFIDENCE,
    )


def wait_advice(account: RankTrace, start_up: str) -> str | None:
    """Return advice on the host's activity for which the device waits longest; None if nothing is known about it.

    The text `start_up` is returned instead if memory is allocated in a recording without steps: this is the start of
    CUDA.
    """
    wait = largest_wait(account)
    if wait and wait.kind is OpportunityKind.ALLOCATION and not account.steps:
        return start_up
    return WORDS[wait.kind].next if wait else None


def largest_wait(account: RankTrace) -> Opportunity | None:
    """Return the opportunity behind the longest wait of the device for a late host; None if nothing is known."""
    return next((one for one in account.opportunities if one.kind in WAITS), None)


def wait_parts(account: RankTrace) -> list[str]:
    """Return texts on the host's activity while the device waited for it, the longest first."""
    waits = [one for one in account.opportunities if one.kind in WAITS]
    total = sum(one.taken_ns for one in waits)
    parts = [
        f"{WORDS[one.kind].title}: {duration_ns(one.taken_ns)}{' a step' if account.steps else ''}"
        f" ({share(one.taken_ns, total)} of its waiting)"
        for one in waits
    ]
    return [*parts, *wait_difference(account, total)] if parts else []


def wait_difference(account: RankTrace, a_step_ns: int) -> list[str]:
    """Return, in a list, why the causes of waiting do not add up to the time between kernels; empty if they do.

    `a_step_ns` is the sum of the causes for one step. Example: 8 ms a step in 3 steps are 24 ms; of these 20 ms are
    between kernels, and 4 ms before the first and after the last one.
    """
    steps = max(1, len(account.step_times))
    more = steps * a_step_ns - account.idle_host_ns
    if abs(more) <= EQUAL_WAITS * account.idle_host_ns:
        return []
    total = f"together {duration_ns(steps * a_step_ns)} in {quantity(steps, 'step')}"
    if more > 0:
        return [f"{total}: {duration_ns(more)} of it before the first kernel and after the last one of a step"]
    return [f"{total}; causes below {percent(SHARE_AT_LEAST)} of the time, {duration_ns(-more)}, are not listed"]
