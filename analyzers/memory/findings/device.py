"""What is worth knowing about the memory of each device, and what to try next."""

from collections.abc import Iterator, Sequence

from analyzers.memory.answers.stacks import place
from analyzers.memory.findings.evidence import fact, ranks_of
from analyzers.memory.findings.peak import peak_findings
from analyzers.memory.findings.remedies import remedy, would
from analyzers.memory.findings.unused_memory import cached_findings
from analyzers.memory.model import Device, FreePieces, Growth, Oom
from analyzers.report import Finding, Severity
from analyzers.words import quantity, share, size

NEAR_LIMIT, SPIKE, LARGER = 0.9, 0.25, 1.5
SPLIT_SHARE, SPLIT_BYTES = 0.2, 64 << 20
POOLS_SHOWN = 3

PATTERN = {
    "growth": "it grew step by step, from step {since} on",
    "spike": "a spike: the steps before peaked at {usual} at most",
    "steady": "no spike: the steps before peaked at {usual} already",
    "unknown": "",
}


def findings_of(device: Device) -> Iterator[Finding]:
    """The findings of one device."""
    if device.oom:
        yield oom_finding(device, device.oom)
        if device.oom.pattern == "spike" or device.oom.requested_bytes >= SPIKE * max(device.oom.allocated_bytes, 1):
            yield spike_finding(device, device.oom)
    yield from fragmentation_findings(device)
    yield from peak_findings(device)
    yield from cached_findings(device)
    if not device.oom and device.limit_bytes and device.peak_allocated_bytes >= NEAR_LIMIT * device.limit_bytes:
        yield near_limit_finding(device, device.limit_bytes)
    yield from trust_findings(device)


def oom_finding(device: Device, oom: Oom) -> Finding:
    kind, held = largest(oom.categories)
    where = place(oom.frames[0]) if oom.frames else ""
    evidence = [
        fact(device, f"asked for {size(oom.requested_bytes)} with {size(oom.device_free_bytes)} left", where),
        fact(device, f"{kind} hold {size(held)} of {size(oom.allocated_bytes)} ({share(held, oom.allocated_bytes)})"),
        *([fact(device, history)] if (history := PATTERN[oom.pattern].format(**told_of(oom))) else []),
        *([fact(device, larger)] if (larger := larger_inputs(oom)) else []),
        *(fact(device, f"{name} holds {size(held)}") for name, held in list(oom.modules.items())[:3]),
        *(fact(device, unusable(pool, oom)) for pool in device.fragmentation.pools[:POOLS_SHOWN]),
    ]
    return Finding(
        id="memory.oom",
        severity=Severity.ERROR,
        title="Out of memory" + (f" in {where}" if where else ""),
        why=f"{size(oom.requested_bytes)} were asked for, {size(oom.device_free_bytes)} were left,"
        f" and {size(oom.allocated_bytes)} were allocated, mostly {kind.replace('_', ' ')}.",
        next=remedy(device, oom.categories),
        ranks=ranks_of(device),
        step=oom.step,
        evidence=evidence,
        confidence=1.0,
    )


def unusable(free: FreePieces, oom: Oom) -> str:
    """What is reserved and free in one place, against the request."""
    large = free.largest_bytes >= oom.requested_bytes
    return (
        f"pool {free.pool}, stream {free.stream}: {size(free.free_bytes)} free in {quantity(free.pieces, 'piece')},"
        f" the largest {size(free.largest_bytes)}" + ("" if large else ", too small for the request")
    )


def told_of(oom: Oom) -> dict[str, str | int | None]:
    return {"usual": size(oom.usual_peak_bytes or 0), "since": oom.since_step}


def larger_inputs(oom: Oom) -> str:
    """Whether the failing step was given more than those before it."""
    now, usual = oom.categories["inputs"], oom.usual_inputs_bytes
    if not usual or now < LARGER * usual:
        return ""
    return f"its inputs are {now / usual:.3g} times those of the steps before ({size(now)} against {size(usual)})"


def spike_finding(device: Device, oom: Oom) -> Finding:
    sudden = oom.pattern == "spike"
    where = place(oom.frames[0]) if oom.frames else "the failing operation"
    return Finding(
        id="memory.oom.spike",
        severity=Severity.WARNING,
        title="The step needs far more than those before it" if sudden else "One allocation was too large",
        why=f"It wanted {size(oom.allocated_bytes + oom.requested_bytes)}; the steps before peaked at"
        f" {size(oom.usual_peak_bytes or 0)} at most: a spike, not a state that had grown too big."
        if sudden
        else f"The failed request alone is {share(oom.requested_bytes, oom.allocated_bytes)} of what was allocated.",
        next=f"Look at the shapes in {where}; bound the batch and the sequence, or compute it in pieces."
        f" The step would need {size(oom.requested_bytes)} less without this request.",
        ranks=ranks_of(device),
        step=oom.step,
        evidence=[
            fact(device, f"asked for {size(oom.requested_bytes)} beside {size(oom.allocated_bytes)}"),
            *([fact(device, larger)] if (larger := larger_inputs(oom)) else []),
        ],
        confidence=0.7,
    )


def leak_finding(device: Device, growing: Sequence[Growth]) -> Finding:
    worst = growing[0]
    where = place(worst.frames[0]) if worst.frames else "an unknown line"
    return Finding(
        id="memory.leak",
        severity=Severity.WARNING,
        title=f"Memory grows by {size(worst.bytes_per_step)} a step from step {worst.first_step} on in {where}",
        why=f"What {where} allocated and nobody freed rose in {worst.steps} steps in a row,"
        f" {size(worst.total_bytes)} in all.",
        next="Find what keeps these tensors: a list that is appended to, a loss added up without .item() or .detach(),"
        f" a graph held by a retained output. Letting go frees {size(sum(g.total_bytes for g in growing))} so far.",
        ranks=ranks_of(device),
        step=worst.first_step,
        evidence=[
            fact(device, f"+{size(g.bytes_per_step)} a step, {g.category}", place(g.frames[0]) if g.frames else "")
            for g in growing
        ],
        confidence=min(0.95, 0.6 + 0.05 * worst.steps),
    )


def fragmentation_findings(device: Device) -> Iterator[Finding]:
    f = device.fragmentation
    if f.made_up_segments:
        return
    free = f.reserved_bytes - f.allocated_bytes
    blocked = f.request_bytes is not None and f.largest_free_block_bytes < f.request_bytes <= free
    if not blocked and (f.inactive_split_bytes < max(SPLIT_BYTES, SPLIT_SHARE * f.reserved_bytes)):
        return
    yield Finding(
        id="memory.fragmentation",
        severity=Severity.ERROR if blocked else Severity.WARNING,
        title=f"{size(f.inactive_split_bytes)} lie free in pieces",
        why=f"{size(free)} of the reserved {size(f.reserved_bytes)} are free, but the largest piece is"
        f" {size(f.largest_free_block_bytes)}"
        + (f" and {size(f.request_bytes or 0)} were asked for." if blocked else "."),
        next=against_pieces(device),
        ranks=ranks_of(device),
        step=device.step,
        evidence=[
            fact(device, f"inactive split blocks: {size(f.inactive_split_bytes)} of {size(f.reserved_bytes)}"),
            *(fact(device, scattered(one)) for one in [*f.pools[:POOLS_SHOWN], *f.segments[:POOLS_SHOWN]]),
        ],
        confidence=0.9 if blocked else 0.7,
    )


def against_pieces(device: Device) -> str:
    """Expandable segments, unless it is known that they would not help."""
    known = next((estimate for estimate in device.estimates if estimate.what == "expandable_segments"), None)
    if known and not known.frees_bytes:
        return (
            f"Use fewer different sizes, as by padding batches to a few lengths. Expandable segments would free nothing"
            f" here ({known.model})."
        )
    effect = would(device, "expandable_segments")
    return "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True." + (f" That{effect}." if effect else "")


def scattered(free: FreePieces) -> str:
    """Where free memory lies that other blocks keep from being given back."""
    where = f"segment {free.segment:#x}" if free.segment is not None else f"pool {free.pool}, stream {free.stream}"
    return (
        f"{where}: {size(free.split_bytes)} in split segments, {quantity(free.pieces, 'free piece')},"
        f" the largest {size(free.largest_bytes)}"
    )


def near_limit_finding(device: Device, limit: int) -> Finding:
    kind, held = largest(device.categories)
    return Finding(
        id="memory.near_limit",
        severity=Severity.WARNING,
        title=f"The peak is {share(device.peak_allocated_bytes, limit)} of the limit",
        why=f"{size(device.peak_allocated_bytes)} of {size(limit)} were allocated at the peak,"
        f" {size(held)} of them {kind.replace('_', ' ')}.",
        next=remedy(device, device.categories),
        ranks=ranks_of(device),
        step=device.step,
        evidence=[fact(device, f"peak {size(device.peak_allocated_bytes)} at entry {device.peak_index}")],
        confidence=0.9,
    )


def trust_findings(device: Device) -> Iterator[Finding]:
    """What limits how far the numbers can be trusted."""
    unknown = device.categories["unknown"]
    if not device.consistent:
        yield inconsistent_finding(device)
    if device.peak_allocated_bytes and unknown > 0.5 * device.peak_allocated_bytes:
        yield uncategorised_finding(device, unknown)


def inconsistent_finding(device: Device) -> Finding:
    return Finding(
        id="memory.inconsistent",
        severity=Severity.WARNING,
        title="The trace does not end at the snapshot",
        why=f"Replaying the {device.entries} entries ends at {size(device.end_allocated_bytes)}, but the blocks alive"
        " say otherwise: entries are missing, or the file was edited.",
        next="Record again without skipping actions; until then take the sizes as approximate.",
        ranks=ranks_of(device),
        step=device.step,
        evidence=[fact(device, f"device {device.device}: {device.entries} entries")],
        confidence=1.0,
    )


def uncategorised_finding(device: Device, unknown: int) -> Finding:
    return Finding(
        id="memory.uncategorised",
        severity=Severity.INFO,
        title=f"{share(unknown, device.peak_allocated_bytes)} of the peak cannot be attributed",
        why="The stacks of these blocks were not recorded, or the blocks are older than the trace.",
        next='Record from the start of the process with stacks="all", or with the trainer\'s own recorder.',
        ranks=ranks_of(device),
        step=device.step,
        evidence=[fact(device, f"unknown: {size(unknown)} of {size(device.peak_allocated_bytes)} at the peak")],
        confidence=1.0,
    )


def largest(categories: dict[str, int]) -> tuple[str, int]:
    return max(categories.items(), key=lambda item: item[1])
