"""Find exposed communication (during which nothing computes) that could be shorter, and the reason why it is long.

The reasons are small collectives, slow links, and no overlap with computing.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analyzers.columns import Column, Integers, Mask
from analyzers.report import Finding, Severity
from analyzers.traces.collectives import RankCollectives, bus_factor, element_bytes
from analyzers.traces.columns import COMMUNICATION, COMPUTE, MEMORY, CoveredTime, Work, merge
from analyzers.traces.evidence import account_finding, recorded_time
from analyzers.traces.launches import copy_rows, intervals_of_kind, subtract
from analyzers.traces.messages import RECEIVE, SEND
from analyzers.traces.model import Collective, OpportunityKind, RankTrace
from analyzers.traces.reading.numbering import combined_codes, rows_by_value
from analyzers.traces.reading.trace import PEER_COPY
from analyzers.words import capitalised, duration_ns, kernel_name, process_group, quantity, share, size

_SMALL_BYTES, _SMALL_NS, _SMALL_A_STEP = 1 << 20, 60_000, 50
"""The limits below which latency decides the time of a collective, in bytes and ns, and how many per step are too many.

Merging such collectives is worth while if a step has at least SMALL_A_STEP of them.
"""
_LARGE_BYTES = 16 << 20
"""The size in bytes from which on the bandwidth of the links limits a collective, and not its latency."""
SLOW = 0.5
"""Links count as slow if a collective reaches less than this share of the expected bus bandwidth."""
_ONE_HOST = 8
_LINKS = {"B200": 680e9, "H200": 370e9, "H100 PCIe": 40e9, "H100": 370e9, "A100": 230e9, "V100": 130e9, "MI300X": 300e9}
"""{part of a device's name: bus bandwidth in bytes/s that large messages reach between the devices of one host}.

Sources: stas00/ml-engineering, network; github.com/NVIDIA/nccl-tests, issues 212 and 272.
"""
_BETWEEN_HOSTS = 40e9
"""The bus bandwidth in bytes/s that large messages reach between hosts with one 400 Gb/s port per device."""


@dataclass(frozen=True)
class ExposedCollectives:
    """The search for time to save in the exposed collectives of a device (those that do not overlap with computing).

    Arrays have an entry for each collective.
    """

    collectives: RankCollectives

    @cached_property
    def rows(self) -> Integers:
        return self.collectives.rows

    @cached_property
    def exposed(self) -> Integers:
        """For each collective, the ns during which it ran, nothing computed, and something waited for it to end.

        If several collectives run at once, the time is divided among them.
        """
        c = self.collectives.work.trace.columns
        covered = CoveredTime(*self.collectives.blocking)
        alone = covered.between(c["start"][self.rows], c["end"][self.rows])
        # Where several run at once the time is shared out, so that the sum is the time that passes.
        both = max(1, int(alone.sum()))
        return np.asarray(alone * min(1.0, covered.total / both), np.int64)

    @cached_property
    def length(self) -> Integers:
        c = self.collectives.work.trace.columns
        return np.asarray(c["end"][self.rows] - c["start"][self.rows], np.int64)

    @cached_property
    def size(self) -> Integers:
        """For each collective, the bytes of the larger of one rank's two buffers; 0 if not recorded."""
        dtype = self.collectives.dtype
        width = np.array([element_bytes(text) for text in dtype.texts], np.int64)[dtype.code]
        return np.maximum(self.collectives.sizes, 0) * width

    @cached_property
    def kind(self) -> Column:
        """For each collective, the number of its kind; a kind has one name, data type, group size and byte count."""
        labels = self.collectives.name, self.collectives.dtype
        return combined_codes(*(label.code for label in labels), self.collectives.members, self.size)

    def parts(self, steps: int) -> Iterator[tuple[OpportunityKind, Integers, dict[str, float]]]:
        """Yield (kind, ns by which each collective could be shorter, measures) for each kind of opportunity.

        `measures` is {name: value}, numbers to show with the opportunity, such as a bandwidth. No time counts for two
        kinds.
        """
        left = self.exposed
        small = self.small(steps)
        if small.any():
            yield (
                OpportunityKind.SMALL_COLLECTIVES,
                np.where(small, left, 0),
                {"bytes": float(np.median(self.size[small]))},
            )
            left = np.where(small, 0, left)
        slow, measures = self.slow()
        slow = np.minimum(slow, left)
        if slow.any():
            yield OpportunityKind.BUS_BANDWIDTH, slow, measures
            left = left - slow
        if left.any():
            yield OpportunityKind.EXPOSED_COMMUNICATION, left, {}

    def small(self, steps: int) -> Column:
        """Return a mask of the small collectives; all False unless there are at least SMALL_A_STEP of them per step."""
        small = (self.size > 0) & (self.size < _SMALL_BYTES) & (self.length < _SMALL_NS)
        return small & (int(small.sum()) >= _SMALL_A_STEP * steps)

    def slow(self) -> tuple[Integers, dict[str, float]]:
        """Return by how many ns each large collective could be shorter at the expected bandwidth, and measures to show.

        The measures, {name: value}, are the bus bandwidth of the slowest kind of collectives, the expected bandwidth,
        and the size of these collectives. The bandwidth of a kind is computed from its shortest collective, because
        this one waited least for other ranks; what others take longer is no matter of bandwidth. Kinds that reach half
        of the expected bandwidth are not shortened.
        """
        shorter, measures = np.zeros(len(self.rows), np.int64), dict[str, float]()
        for _, mine in rows_by_value(self.kind):
            first = int(mine[0])
            name = self.collectives.name.texts[self.collectives.name.code[first]]
            expected, size = self.expected(first), int(self.size[first])
            shortest = int(self.length[mine].min())
            # A receive lasts as long as its sender is late: in a pipeline each one may.
            if not expected or size < _LARGE_BYTES or not shortest or SEND.search(name) or RECEIVE.search(name):
                continue
            factor = bus_factor(name, self.members(first))
            rate = size * factor / shortest * 1e9
            if rate < SLOW * expected:
                shorter[mine] = max(shortest - round(size * factor / expected * 1e9), 0)
                if rate < measures.get("bus_bytes_per_s", np.inf):
                    measures = {"bus_bytes_per_s": rate, "expected_bytes_per_s": expected, "message_bytes": size}
        return shorter, measures

    def members(self, index: int) -> int:
        return int(self.collectives.members[index])

    def expected(self, index: int) -> float:
        """Return the bus bandwidth (bytes/s) that collective `index` should reach; 0 if the device is unknown."""
        if self.members(index) > _ONE_HOST:
            return _BETWEEN_HOSTS
        names = " ".join(self.collectives.work.trace.header.get("devices", [])[:1])
        return next((speed for name, speed in _LINKS.items() if name in names), 0.0)


def communicates(collectives: RankCollectives) -> bool:
    return bool((collectives.work.kind == COMMUNICATION).any())


_COPY_AT_LEAST_NS = 20_000
"""The shortest copy that counts: a scalar takes its latency, wherever it comes from."""
_HOST_COPY = re.compile(r"HtoD|DtoH|HostToDevice|DeviceToHost")
_PAGEABLE = re.compile("Pageable")
_UNKNOWN_MEMORY = re.compile(r"\((Host -> Device|Device -> Host)\)|HostToDevice|DeviceToHost")
"""Matches the copies of which ROCm does not say whether the host's memory is pinned."""
_PAGEABLE_BYTES_PER_S = 12e9
"""The rate up to which a large copy is assumed to come from or go to pageable memory, which reaches 3 to 12 GB/s."""
_HOST_COPIES_LARGE_BYTES = 1 << 20


def copies_between(work: Work) -> tuple[Mask, Mask]:
    """Return two masks of the events in `work`: copies from or to pageable memory of the host, and all others."""
    names = work.trace.names
    is_host, says_pageable, unknown = (
        np.array([bool(matches(name)) for name in names] or [False])[work.trace.columns["name"][work.rows]]
        for matches in (_HOST_COPY.search, _PAGEABLE.search, _UNKNOWN_MEMORY.search)
    )
    copies = is_host & (work.kind == MEMORY) & (work.own >= _COPY_AT_LEAST_NS)
    _, size = copy_rows(work)
    moved = size[work.rows]
    slow = (moved >= _HOST_COPIES_LARGE_BYTES) & (moved < _PAGEABLE_BYTES_PER_S * work.own / 1e9)
    pageable = copies & (says_pageable | (unknown & slow))
    return pageable, copies & ~pageable


def alone(work: Work, copies: Mask) -> Integers:
    """Return, for each event that `copies` selects, the ns during which it runs and nothing computes; else 0."""
    computing = intervals_of_kind(work, COMPUTE)
    covered = CoveredTime(*subtract(merge(work.start[copies], work.end[copies]), computing))
    return np.where(copies, covered.between(work.start, work.end), 0)


_COLLECTIVES_AT_MOST = 3
_LITTLE_COMPUTE = 0.25
"""The share of the exposed communication that compute must be able to hide for overlap to be advised.

With less, even perfect overlap leaves more than three quarters of it exposed, so its causes must be found first.
"""
_COMMUNICATION_SMALL_BYTES = 64 << 10
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
    first, what = _start_with_longest(account)
    longest = _longest_collective(account)
    if longest and 0 < longest.bytes < _COMMUNICATION_SMALL_BYTES:
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


def _longest_collective(account: RankTrace) -> Collective | None:
    return max(account.collectives, key=lambda collective: collective.total_ns, default=None)


def _start_with_longest(account: RankTrace) -> tuple[str, str]:
    """Return the beginning of an advice, which names the collective with most time, and a pronoun that refers to it.

    Example: `start with all_gather of process group mesh_fsdp, 1.5 MiB each (81.0 ms in 12 calls):`, `it`.
    """
    longest = _longest_collective(account)
    if longest is None:
        return "", "the longest collectives"
    took = f"{duration_ns(longest.total_ns)} in {quantity(longest.count, 'call')}"
    return f"start with {_collective_text(longest)} ({took}):", "it"


def _how_to_hide(account: RankTrace) -> str:
    """Return how to overlap the collective with most time with compute; this depends on the kind of parallelism."""
    longest = _longest_collective(account)
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
    longest = _longest_collective(account)
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
