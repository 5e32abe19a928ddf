"""Find the opportunities of one device or host to save time, the largest first; no time counts for two opportunities.

Three kinds of time exclude each other: the device waits, communication is exposed, or the device computes or copies. If
a kernel could be shorter for two reasons, the first one in the order of `OpportunityKind` counts: float32 products of
an unfused attention count as attention.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np

from analyzers.columns import Column, Integers, Mask
from analyzers.traces.attention import Attentions
from analyzers.traces.collectives import RankCollectives
from analyzers.traces.columns import NONE, NestedEvents, Work, innermost_at, innermost_selected
from analyzers.traces.communication import ExposedCollectives, alone, communicates, copies_between
from analyzers.traces.costs import Attribution
from analyzers.traces.flops import Formulas, is_layout_copy, is_recomputed, runs_in_float32, runs_in_float64
from analyzers.traces.launches import BLOCKED_FACTOR, loses_kernels, waiting_calls
from analyzers.traces.model import NamedTime, Opportunity, OpportunityKind, RankTrace
from analyzers.traces.products import (
    MisalignedProducts,
    cross_entropy_shortening,
    fusable_shortening,
    named,
    parts_of_step,
    shortening_by_tensor_cores,
)
from analyzers.traces.rank_waits import RankWaits
from analyzers.traces.reading.numbering import distinct_values, factorize, rows_by_value, sums_by_code
from analyzers.traces.reading.trace import OPS, PROFILER_STEP
from analyzers.traces.stragglers import Straggler
from analyzers.traces.waits import Cause, Host, causes, covered_rows, emptied_by, few_steps

_UNBLOCKED = 10
"""The percentile of the durations of launching calls at which a call did not wait for room in the queue."""
_WAITED_NS = 10_000
"""The time in ns below which a synchronising call is taken not to have waited for the device."""


@dataclass(frozen=True)
class Playback:
    """A simulation of the events of a device or host, which computes how much time shorter events would save."""

    work: Work

    @cached_property
    def waits(self) -> tuple[Column, Column]:
        """The starts and ends (ns) of the host's calls that waited for the device, in order of their end."""
        c, rows = self.work.trace.columns, waiting_calls(self.work.trace)
        start, end = c["start"][rows], c["end"][rows]
        order = np.argsort(end, kind="stable")
        order = order[(end - start)[order] > _WAITED_NS]
        return start[order], end[order]

    @cached_property
    def launched(self) -> Integers:
        """For each event, the time (ns) at which it would have been launched if the launch queue always had room.

        If the launch is unknown, the event's start is used.
        """
        work = self.work
        return np.where(work.linked, np.minimum(work.launch_start, work.start) - self.blocked, work.start)

    @cached_property
    def blocked(self) -> Integers:
        """For each event, how long the host's launching calls had waited in total up to its launch, in ns.

        The call that launched the event is included. The launch queue holds about 1024 kernels; if it is full, a
        launching call waits until a kernel ends. With shorter kernels these waits would be shorter.
        """
        work = self.work
        calls = distinct_values(work.launch[work.linked]).astype(np.int64)
        c = work.trace.columns
        start, length = c["start"][calls], (c["end"][calls] - c["start"][calls]).astype(np.int64)
        # With a full queue most calls wait, but those before it was full did not.
        usual = int(np.percentile(length, _UNBLOCKED)) if len(length) else 0
        blocked = np.where(length > BLOCKED_FACTOR * max(1, usual), length - usual, 0)
        order = np.argsort(start, kind="stable")
        return np.concatenate([[0], np.cumsum(blocked[order])])[np.searchsorted(start[order], work.launch_start)]

    @cached_property
    def segment(self) -> Integers:
        """For each event, how many of the host's `waits` had ended when the event was launched.

        After each wait of the host the device has no work left, so events of different segments do not delay each
        other.
        """
        at = np.where(self.work.linked, self.work.launch_start, self.work.start)
        return np.searchsorted(self.waits[1], at, side="right")

    @cached_property
    def streams(self) -> list[Integers]:
        """For each stream, the indices of its events in `work`, in order of their start."""
        lanes = self.work.trace.columns["lane"][self.work.rows]
        return [rows[np.lexsort((self.work.start[rows], self.segment[rows]))] for _, rows in rows_by_value(lanes)]

    def saved_ns(self, shorter: Integers) -> int:
        """Return by how many ns the recording would be shorter if each event were shorter by the ns in `shorter`."""
        if self.work.device is None:
            return int(shorter.sum())
        saved = sum(self.saved_in_stream(order, shorter[order]) for order in self.streams if shorter[order].any())
        # Streams beside each other may save the same time; all of it is the most.
        return min(saved, int(shorter.sum()))

    def saved_in_stream(self, order: Integers, shorter: Integers) -> int:
        """Return the ns saved in one stream, summed over its segments (a segment lies between two waits of the host).

        `order` has the indices of the stream's events in `work`; `shorter` has, for each of them, by how many ns it is
        shorter.
        """
        segment = self.segment[order]
        recorded, played = self.ends(order, np.zeros_like(shorter)), self.ends(order, shorter)
        last = np.flatnonzero(np.append(np.diff(segment) != 0, True))
        saved = (recorded - played)[last]
        # A host that waited for 1 ms cannot go on more than 1 ms earlier; at the end of the recording nothing waits.
        waited = np.append(self.waits[1] - self.waits[0], np.iinfo(np.int64).max >> 1)[segment[last]]
        blocked = self.blocked[order][last]
        blocked -= np.append(0, blocked[:-1])
        return int(np.minimum(saved, waited + blocked).clip(min=0).sum())

    def ends(self, order: Integers, shorter: Integers) -> Integers:
        """Return when each event of a stream would end (ns of the trace's clock) if it began as early as possible.

        `order` has the indices of the stream's events in `work`; `shorter` has, for each of them, by how many ns it is
        shorter. If a recorded delay is explained neither by the launch nor by the event before, the delay is kept.
        """
        work, segment = self.work, self.segment[order]
        start, end = work.start[order].astype(np.int64), work.end[order].astype(np.int64)
        before = np.append(start[:1], np.maximum.accumulate(end)[:-1])
        launched = self.launched[order]
        ready = np.maximum(launched, np.minimum(before, start))
        length = (start - ready) + (end - start - shorter)
        total = np.cumsum(length)
        base = int(launched.min(initial=0))
        stretch = int(end.max(initial=0)) - base + int(total[-1] if len(total) else 0) + 1
        # One running maximum serves for all segments, as each gets a stretch of time of its own.
        begin = launched - base - (total - length) + segment * np.int64(2 * stretch)
        ends: Integers = np.maximum.accumulate(begin) - segment * np.int64(2 * stretch) + total + base
        return ends


SHARE_AT_LEAST = 0.02
"""The share of a step that an opportunity must save to be listed."""
NAMES_AT_MOST, _INTERVALS_AT_MOST = 3, 1000
_EVENTS_AT_LEAST = 10
_HIDDEN_AHEAD = {OpportunityKind.DATA_LOADER, OpportunityKind.PYTHON, OpportunityKind.LAUNCH}
"""The work of the host that delays nothing if the host is far enough ahead of the device."""


@dataclass(frozen=True)
class AccountOpportunities:
    """The search for opportunities to shorten the steps of one device or host, with the time that each would save."""

    collectives: RankCollectives
    attribution: Attribution
    formulas: Formulas

    @property
    def work(self) -> Work:
        return self.collectives.work

    @property
    def steps(self) -> int:
        return max(1, len(self.work.trace.steps))

    @cached_property
    def time_ns(self) -> int:
        """The total duration of the recorded steps in ns, or the duration of the device's work if it is longer.

        The work can be longer because a host may be far ahead of its device.
        """
        marked = sum(end - start for _, start, end in self.work.trace.steps)
        return max(marked, int(self.work.end.max() - self.work.start.min()) if len(self.work.rows) else 0)

    def all(self) -> list[Opportunity]:
        """Return the opportunities that save at least 2 % of the time, the largest first."""
        # A file with a handful of events is a part of a recording: what is missing is no waiting.
        if len(self.work.rows) < _EVENTS_AT_LEAST or not self.time_ns:
            return []
        found = [*self.waits(), *self.communication(), *self.work_of_device()]
        listed = [one for one in found if one.saved_share >= SHARE_AT_LEAST]
        return sorted(listed, key=lambda one: (-one.saved_ns, one.kind))

    def opportunity(
        self, kind: OpportunityKind, count: int, taken_ns: int, saved_ns: int, names: list[NamedTime], **measures: float
    ) -> Opportunity:
        """Return an opportunity with numbers per step, given the numbers of the whole recording.

        `count` events take `taken_ns`, of which `saved_ns` can be saved. `names` are the names of these events;
        `measures` are further numbers to show.
        """
        return Opportunity(
            kind=kind,
            count=count,
            taken_ns=taken_ns // self.steps,
            saved_ns=saved_ns // self.steps,
            saved_share=round(min(1.0, saved_ns / self.time_ns), 4),
            names=names,
            measures={name: round(value, 4) for name, value in measures.items()},
        )

    def waits(self) -> Iterator[Opportunity]:
        """Yield an opportunity for each reason why the device waits for the host, such as the data loader."""
        host = Host(self.work.trace)
        if loses_kernels(*self.work.expected_and_lost):
            return
        for cause in causes(self.work, host):
            names, steps = self.host_names(cause, host), few_steps(self.work.trace, cause.intervals)
            found = self.opportunity(cause.kind, cause.count, cause.waiting_ns, cause.waiting_ns, names, **steps)
            yield self.with_call_before(found, cause)

    def with_call_before(self, found: Opportunity, cause: Cause) -> Opportunity:
        if cause.kind not in _HIDDEN_AHEAD or found.saved_share < SHARE_AT_LEAST or self.work.device is None:
            return found
        return msgspec.structs.replace(found, after=emptied_by(self.attribution, cause.intervals) or msgspec.UNSET)

    def host_names(self, cause: Cause, host: Host) -> list[NamedTime]:
        """Return the names of the host's events that ran while the device waited for `cause`, the longest first."""
        trace = self.work.trace
        if cause.kind is OpportunityKind.SYNCHRONISING_CALL:
            rows = host.synchronising
        elif cause.kind is OpportunityKind.LAUNCH:
            rows = np.flatnonzero(trace.category_matches(OPS))
        elif cause.kind is OpportunityKind.PYTHON:
            return self.innermost_names(cause, host)
        else:
            rows = host.rows_by_kind[cause.kind]
        if cause.kind is OpportunityKind.COMPILATION:
            rows = np.union1d(rows, host.lasting(cause.intervals)[0])
        rows, inside = covered_rows(trace, rows, cause.intervals)
        return self.totals(trace.columns["name"][rows], inside)

    def innermost_names(self, cause: Cause, host: Host) -> list[NamedTime]:
        """Return what the host's main thread ran while the device waited because of `cause`, by name of event.

        For each of the longest waits, the result counts the innermost event at the middle of the wait, and the function
        in the user's own files around this event.
        """
        c, start, end = self.work.trace.columns, *cause.intervals
        longest = np.argsort(start - end, kind="stable")[:_INTERVALS_AT_MOST]
        start, end = start[longest], end[longest]
        events = NestedEvents(c["lane"], c["start"], c["end"], c["parent"])
        inside = innermost_at(events, np.full(len(start), host.main), (start + end) // 2)
        marks = self.work.trace.text_matches(PROFILER_STEP)[c["name"]]
        line = np.where(inside >= 0, self.attribution.around("line")[inside], NONE)
        rows, spent = np.concatenate([inside, line]), np.tile(end - start, 2)
        known = (rows >= 0) & ~marks[rows]
        known[len(inside) :] &= line != inside
        return self.totals(c["name"][rows[known]], spent[known])

    def totals(self, name: Column, spent: Column) -> list[NamedTime]:
        """Return the names with the most total time, each with its number of events and total time.

        `name` has the index of each event's name in `trace.names`, `spent` the time of each event in ns.
        """
        numbers, code = factorize(name)
        count, total = np.bincount(code, minlength=len(numbers)), sums_by_code(code, spent, len(numbers))
        most = np.argsort(-total, kind="stable")[:NAMES_AT_MOST]
        texts = self.work.trace.names
        return [NamedTime(name=texts[numbers[i]], count=int(count[i]), total_ns=int(total[i])) for i in most.tolist()]

    def communication(self) -> Iterator[Opportunity]:
        if not communicates(self.collectives):
            return
        found = ExposedCollectives(self.collectives)
        for kind, shorter, measures in found.parts(self.steps):
            mine = shorter > 0
            names = self.totals(self.work.trace.columns["name"][found.rows[mine]], found.exposed[mine])
            taken, saved = int(found.length[mine].sum()), int(shorter.sum())
            yield self.opportunity(kind, int(mine.sum()), taken, saved, names, **measures)

    def work_of_device(self) -> Iterator[Opportunity]:
        """Yield opportunities to shorten kernels and copies; each kernel or copy counts for only one of them."""
        playback, left = Playback(self.work), np.ones(len(self.work.rows), bool)
        for kind, each in self.shortenings():
            shorter = np.where(left, each, 0)
            # What is too little to be listed must not take its kernels from the kinds that follow.
            if shorter.sum() < SHARE_AT_LEAST * self.time_ns:
                continue
            mine = shorter > 0
            left &= ~mine
            names = self.totals(self.work.trace.columns["name"][self.work.rows[mine]], self.work.own[mine])
            taken = int(self.work.own[mine].sum())
            saved, measures = playback.saved_ns(shorter), self.measures(kind, mine)
            found = self.opportunity(kind, int(mine.sum()), taken, saved, names, **measures)
            yield self.with_fallbacks(found) if kind is OpportunityKind.UNFUSED_ATTENTION else found

    def measures(self, kind: OpportunityKind, mine: Mask) -> dict[str, float]:
        """Return numbers that a kind of opportunity shows of its events, which `mine` selects in `work`."""
        if kind is OpportunityKind.ELEMENTWISE:
            return parts_of_step(self.work, mine)
        copies = (OpportunityKind.PAGEABLE_COPIES, OpportunityKind.EXPOSED_COPIES)
        return few_steps(self.work.trace, (self.work.start[mine], self.work.end[mine])) if kind in copies else {}

    def with_fallbacks(self, found: Opportunity) -> Opportunity:
        """Return the opportunity of attention that is not fused, with the reasons of PyTorch's operator, if it ran."""
        return msgspec.structs.replace(found, fallbacks=self.attentions.fallbacks() or msgspec.UNSET)

    @cached_property
    def attentions(self) -> Attentions:
        return Attentions(self.attribution, self.formulas)

    def shortenings(self) -> Iterator[tuple[OpportunityKind, Integers]]:
        """Yield (kind, array of the ns by which each event of `work` could be shorter), the surest kinds first."""
        work = self.work
        yield OpportunityKind.UNFUSED_ATTENTION, self.attention_shortening()
        yield OpportunityKind.RECOMPUTATION, self.recomputation_shortening()
        if work.device is None:
            return
        yield OpportunityKind.FLOAT64, shortening_by_tensor_cores(work, self.formulas, runs_in_float64)
        yield OpportunityKind.FLOAT32, shortening_by_tensor_cores(work, self.formulas, runs_in_float32)
        yield OpportunityKind.MISALIGNED, MisalignedProducts(self.attribution, self.formulas).shortening()
        yield OpportunityKind.LAYOUT_COPIES, np.where(named(work, is_layout_copy), work.own, 0)
        pageable, other = copies_between(work)
        yield OpportunityKind.PAGEABLE_COPIES, alone(work, pageable)
        yield OpportunityKind.EXPOSED_COPIES, alone(work, other)
        yield OpportunityKind.CROSS_ENTROPY, cross_entropy_shortening(self.attribution, self.formulas)
        yield OpportunityKind.ELEMENTWISE, fusable_shortening(self.attribution)

    def attention_shortening(self) -> Integers:
        """Return by how many ns each event of `work` would be shorter if attention were one fused kernel."""
        shorter = np.zeros(len(self.work.rows), np.int64)
        for _, events, least in self.attentions.chains:
            spent = self.work.own[events]
            part = max(0.0, 1 - least / max(1, int(spent.sum())))
            shorter[events] = (spent * part).astype(np.int64)
        return shorter

    def recomputation_shortening(self) -> Integers:
        """Return, for each event of `work`, its time (ns) if activation checkpointing ran it a second time, else 0."""
        c = self.work.trace.columns
        forward = c["autograd_row"][c["autograd_thread"] <= 0].astype(np.int64)
        again = np.zeros(len(c["start"]), bool)
        again[forward[is_recomputed(self.work.trace, forward)]] = True
        if not again.any():
            return np.zeros(len(self.work.rows), np.int64)
        inside = innermost_selected(again, c["parent"])
        return np.where(self.work.linked & (inside[self.work.launch] != NONE), self.work.own, 0)


def opportunities(collectives: RankCollectives, attribution: Attribution, formulas: Formulas) -> list[Opportunity]:
    """Return the opportunities of a device or host to make its steps shorter, the largest first."""
    return AccountOpportunities(collectives, attribution, formulas).all()


def imbalances(
    accounts: Sequence[RankTrace], stragglers: Sequence[Straggler]
) -> Iterator[tuple[RankTrace, Opportunity]]:
    """Yield (device or host, opportunity) for each straggler: the time saved if it worked no longer than the others.

    "Device or host" is the `RankTrace` of the straggler's first device or host. The names in the opportunity are the
    causes of its excess work.
    """
    # Of several devices of a rank the first one stands for it.
    account_of = {account.rank: account for account in reversed(accounts)}
    for late in stragglers:
        if late.saved_share >= SHARE_AT_LEAST and late.rank in account_of:
            steps = max(1, late.steps)
            # The excess is a sum over all collectives. Where the rank works less than the others elsewhere, this sum is
            # smaller than the excess that the simulation removes.
            taken = max(late.excess_ns, late.saved_ns)
            yield (
                account_of[late.rank],
                Opportunity(
                    kind=OpportunityKind.IMBALANCE,
                    count=late.late_steps,
                    taken_ns=taken // steps,
                    saved_ns=late.saved_ns // steps,
                    saved_share=late.saved_share,
                    names=[
                        NamedTime(name=cause, count=late.late_steps, total_ns=ns)
                        for cause, ns in sorted(late.causes_ns.items(), key=lambda part: part[0] != late.cause)
                    ][:3],
                ),
            )


def without_waiting(account: RankTrace, waits: Sequence[RankWaits]) -> RankTrace:
    """Return a copy of `account` whose opportunity to hide communication leaves out waiting for late ranks.

    `account` has the results of a device or host. Overlapping communication with computing would not save this waiting.
    `waits` has the waiting of each rank. If the opportunity becomes too small, it is left out.
    """
    waited = sum(row.wait_ns for row in waits if row.rank == account.rank)
    if not waited:
        return account
    left = [shortened(one, waited // max(1, account.steps)) for one in account.opportunities]
    listed = [one for one in left if one.saved_share >= SHARE_AT_LEAST]
    return msgspec.structs.replace(account, opportunities=listed)


def shortened(one: Opportunity, waited_ns: int) -> Opportunity:
    """Return an opportunity with `waited_ns` less to save per step if it is exposed communication, else unchanged.

    `waited_ns` is the time per step that the rank waits in collectives for other ranks. Overlapping communication with
    computing would not save this time.
    """
    if one.kind is not OpportunityKind.EXPOSED_COMMUNICATION or not one.saved_ns:
        return one
    saved = max(0, one.saved_ns - waited_ns)
    return msgspec.structs.replace(one, saved_ns=saved, saved_share=round(one.saved_share * saved / one.saved_ns, 4))
