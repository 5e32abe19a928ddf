"""Write the finding about exposed communication: which collective to treat first, and how to hide or measure it."""

import re

from analyzers.report import Finding, Severity
from analyzers.traces.answers.messages import RECEIVE, SEND
from analyzers.traces.findings.common import account_finding, recorded_time
from analyzers.traces.kernel_names import kernel_name
from analyzers.traces.model import Collective, RankTrace
from analyzers.traces.reading.trace import PEER_COPY
from analyzers.words import capitalised, duration_ns, process_group, quantity, share, size

_COLLECTIVES_AT_MOST = 3
_LITTLE_COMPUTE = 0.25
"""The share of the exposed communication that compute must be able to hide for overlap to be advised.

With less, even perfect overlap leaves more than three quarters of it exposed, so its causes must be found first.
"""
_SMALL_BYTES = 64 << 10
"""Below this size, a collective takes next to no time on a network: ranks wait in it for one another."""
_HOST_ONLY = " These times are those of the CPU: the trace has no device events."


def exposed_finding(account: RankTrace) -> Finding:
    exposed, span = account.exposed_communication_ns, account.span_ns
    return account_finding(
        account,
        "trace.exposed_communication",
        f"Communication without compute (exposed communication) takes {share(exposed, span)} of the"
        f" {recorded_time(account)}",
        f"{_exposed_times(account)}{_HOST_ONLY if account.source == 'cpu' else ''}",
        "If this report also names a straggler, fix that first: the other ranks wait for it inside their collectives."
        f" Otherwise {_hide_advice(account)}",
        severity=Severity.WARNING,
        confidence=0.9,
        facts=[
            _collective_times(account),
            *_longest_collectives(account),
        ],
    )


def _exposed_times(account: RankTrace) -> str:
    """Return sentences on how long collectives ran in total, without overlapping compute, and blocking other work.

    Equal times are written once.
    """
    whole, exposed = duration_ns(account.communication_ns), duration_ns(account.exposed_communication_ns)
    blocked = duration_ns(account.blocking_communication_ns) if account.blocking_communication_ns else None
    nothing = "nothing was computed"
    first = (
        f" for {whole}, and {nothing} meanwhile" if whole == exposed else f" for {whole}; for {exposed} of it {nothing}"
    )
    waiting = "the program" if account.source == "cpu" else "a kernel that was already launched"
    part = "all of that time" if blocked == exposed else f"{blocked} of that"
    return f"Collectives ran{first}." + (
        f" For {part}, {waiting} was blocked until a collective ended." if blocked else ""
    )


def _hide_advice(account: RankTrace) -> str:
    """Return the end of a sentence: which collective to treat first, and how to hide it or to need fewer of them.

    Compute that already runs during one collective cannot hide another one.
    """
    first, what = _longest_collective(account)
    longest = max(account.collectives, key=lambda collective: collective.total_ns, default=None)
    if longest and 0 < longest.bytes < _SMALL_BYTES:
        return f"{first} {_NOT_SO_OFTEN}"
    if longest and (SEND.search(longest.name) or RECEIVE.search(longest.name)):
        return f"{first} {_BUBBLE}"
    free = account.compute_ns - account.overlapped_communication_ns
    if free >= account.exposed_communication_ns:
        return f"{first} hide {what} behind compute. {capitalised(_how_to_hide(account))}."
    return (
        f"{first} time {what} alone, on the same ranks"
        f"{'' if account.source == 'cpu' else ' (nccl-tests does this for NCCL)'}. {_reading_of_time(account)}"
        f" {_limit_of_overlap(account, free)}"
    )


_NOT_SO_OFTEN = (
    "sending so little takes next to no time, so nearly all of this time is spent waiting for other ranks. Call it less"
    " often, for example only in steps that log, or with async_op=True, and wait for its result later."
)


def _limit_of_overlap(account: RankTrace, free: int) -> str:
    """Return a sentence: how much communication `free` ns of compute outside of collectives can hide, and how."""
    exposed = account.exposed_communication_ns
    if free <= 0:
        return "Overlap with compute cannot help: nothing is computed outside of collectives."
    most = f"hide at most {duration_ns(free)} of the {duration_ns(exposed)}"
    if free < _LITTLE_COMPUTE * exposed:
        return f"Overlap with compute will not help much: it can {most}."
    return f"Overlap with compute can {most}. {capitalised(_how_to_hide(account))}."


def _longest_collective(account: RankTrace) -> tuple[str, str]:
    """Return the beginning of an advice, which names the collective with most time, and a pronoun that refers to it.

    Example: `start with all_gather of process group mesh_fsdp, 1.5 MiB each (81.0 ms in 12 calls):`, `it`.
    """
    longest = max(account.collectives, key=lambda collective: collective.total_ns, default=None)
    if longest is None:
        return "", "the longest collectives"
    took = f"{duration_ns(longest.total_ns)} in {quantity(longest.count, 'call')}"
    return f"start with {_collective_text(longest)} ({took}):", "it"


def _how_to_hide(account: RankTrace) -> str:
    """Return how to overlap the collective with most time with compute; this depends on the kind of parallelism."""
    longest = max(account.collectives, key=lambda collective: collective.total_ns, default=None)
    name = longest.name if longest else ""
    compact = re.sub("[^a-z]", "", name.lower())
    if _EXPERTS.search(name):
        return _OF_EXPERTS
    if _OWN_REDUCTION.search(name) or (longest and _TENSOR_PARALLEL.search(longest.group_desc)):
        return _OF_TENSOR_PARALLEL
    if PEER_COPY.search(name):
        return _OF_COPIES
    if "allgather" in compact or "reducescatter" in compact:
        return _OF_FSDP
    return _OF_DDP if "allreduce" in compact else f"{_OF_FSDP}; {_OF_DDP}"


_EXPERTS = re.compile(r"(dispatch|combine)(Kernel)?\b|all_?to_?all|a2a_|alltoallv", re.IGNORECASE)
"""Matches what sends tokens to the ranks of their experts, and the results back."""
_OWN_REDUCTION = re.compile(
    r"cross_device_reduce|multimem|(one|two)_?shot|quickreduce|allreduce_fusion|userbuffers", re.IGNORECASE
)
"""Matches the all-reduces that libraries bring along for tensor parallelism."""
_TENSOR_PARALLEL = re.compile(r"(^|[^a-z])(tp|tensor)([^a-z]|$)|tensor_(model_)?parallel", re.IGNORECASE)
_OF_FSDP = "with FSDP2, prefetch the next layer (set_modules_to_forward_prefetch)"
_OF_COPIES = (
    "if FSDP2 gathers by copies, prefetch the next layer (set_modules_to_forward_prefetch); if one process holds a"
    " model on several devices, use a pipeline with microbatches, or one process per device"
)
_OF_DDP = (
    "with DDP, try other sizes of buckets (bucket_cap_mb): larger ones need fewer calls, smaller ones leave less to"
    " send after the last gradient"
)
_OF_EXPERTS = (
    "with expert parallelism, compute shared experts or the other half of the batch meanwhile, and let the call return"
    " at once (async_op=True, or async_finish of DeepEP)"
)
_OF_TENSOR_PARALLEL = (
    "with tensor parallelism, the next kernel needs the result, so cut the products into parts that overlap"
    " (asynchronous tensor parallelism: torch._inductor.config._micro_pipeline_tp), fuse the reduction with the norm"
    " behind it, or use fewer tensor-parallel ranks"
)
_BUBBLE = (
    "it waits for the neighbouring stage of the pipeline, which is its bubble. Use more microbatches per step, an"
    " interleaved or a zero-bubble schedule, and stages with equal work; the traces of all stages show which one is"
    " late."
)


def _reading_of_time(account: RankTrace) -> str:
    """Return sentences on what the time of a collective can say about the cause of waiting, with the recorded times."""
    longest = max(account.collectives, key=lambda collective: collective.total_ns, default=None)
    recorded = (
        f" (here its shortest call took {duration_ns(longest.min_ns)}, the median {duration_ns(longest.median_ns)})"
        if longest and longest.count > 1
        else ""
    )
    return (
        f"If it is much faster there{recorded}, ranks wait for each other: compare the traces of all ranks. If it takes"
        " as long there, the network is slow: communicate less often, for example with gradient accumulation."
    )


def _collective_times(account: RankTrace) -> str:
    whole, exposed = account.communication_ns, account.exposed_communication_ns
    parts = f"{duration_ns(exposed)} without compute, {duration_ns(whole - exposed)} during compute"
    return f"collectives ran for {duration_ns(whole)}: {parts}"


def _longest_collectives(account: RankTrace) -> list[str]:
    """Return texts on the longest collectives.

    Example: `all_gather of process group mesh_fsdp, 1.5 MiB each: 12 calls, 81.0 ms in total, the shortest 5.00 ms`.
    """
    longest = sorted(account.collectives, key=lambda collective: -collective.total_ns)[:_COLLECTIVES_AT_MOST]
    parallel = sum(collective.total_ns for collective in longest) > account.communication_ns
    note = " (calls ran at the same time as others)" if parallel else ""
    return [
        f"{_collective_text(collective)}: {quantity(collective.count, 'call')}, {duration_ns(collective.total_ns)} in"
        f" total{_shortest_call(collective)}{note}"
        for collective in longest
    ]


def _shortest_call(collective: Collective) -> str:
    return f", the shortest {duration_ns(collective.min_ns)}" if collective.count > 1 else ""


def _collective_text(collective: Collective) -> str:
    label = collective.group_desc or collective.group
    each = f", {size(collective.bytes)} each" if collective.bytes else ", of unknown size"
    return f"{kernel_name(collective.name)}{f' of {process_group(label)}' if label else ''}{each}"
