"""Find the ranks that were missing when others timed out in a collective or lost their connection.

A rank is called silent here if it printed neither a timeout nor a lost connection.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from analyzers.case.facts import EventKind, LogEvent, Reason
from analyzers.case.hypothesis import Basis, Blame, Hypothesis
from analyzers.case.wording import MESSAGES, NEW_GROUP
from analyzers.logs.answers.failures import TABLE
from analyzers.logs.answers.roles import GAVE_UP, WAITING
from analyzers.logs.loading import Logs, is_of_one_rank


def _in_messages(places: Mapping[int, LogEvent]) -> list[int]:
    """Return the ranks that waited in a send or recv.

    `places` maps each rank to the event that shows where it waited.
    """
    return [rank for rank, event in places.items() if event.facts.operation in MESSAGES]


def _find_unmatched(places: Mapping[int, LogEvent], logs: Logs) -> list[int]:
    """Return the ranks to blame for sends and receives that did not match; empty if the lines do not name the peers.

    `places` maps each rank to the event that shows where it waited. From each rank that waits in a send or recv, the
    search goes to its peer, from there to the peer's peer, and so on. It ends at a rank that waits elsewhere (this rank
    never issued its send or recv), or in a cycle of ranks that wait for each other. If there are two ranks and their
    lines name no peer, both are returned.
    """
    waiting = _in_messages(places)
    culprits = {rank for start in waiting for rank in follow(start, places)}
    everyone = set(places) == set(logs.ranks)
    if not culprits and everyone and len(waiting) == len(places) == 2:
        return sorted(waiting)
    return sorted(culprits)


def follow(start: int, places: Mapping[int, LogEvent]) -> list[int]:
    """Return the rank, or the cycle of ranks, that is reached from `start` by going from each send or recv to its peer.

    The search ends at a rank that waits elsewhere, or when it reaches a rank again. The list is empty if a peer is not
    known. `places` maps each rank to the event that shows where it waited.
    """
    path = [start]
    while True:
        peer = peer_of(path[-1], places[path[-1]])
        if peer is None or peer not in places:
            return []
        if places[peer].facts.operation not in MESSAGES:
            return [peer]
        if peer in path:
            return path[path.index(peer) :]
        path.append(peer)


def peer_of(rank: int, event: LogEvent) -> int | None:
    """Return the rank that `rank` sends to or receives from, according to its event; None if the event has no peer.

    The event has the peer as a rank (`0`), or relative to `rank` (`+1`).
    """
    text = event.facts.peer
    if not text:
        return None
    return rank + int(text) if text[0] in "+-" else int(text)


_FIRST_OPERATIONS = 3
_SAYS_WHERE = (EventKind.TIMEOUT, EventKind.CONNECTION_LOST)
"""The kinds of events with which a rank's wait in a collective ends: a timeout, or a connection that others closed."""
_PASSED_EARLY = {"gather", "reduce"}
_RECEIVED_EARLY = {"broadcast", "scatter"}
"""Collectives that a rank leaves as soon as it has received its part, perhaps before others begin."""
RANKS_AT_MOST = 1 << 14
_EQUAL_SIZES = ("ALLREDUCE", "BROADCAST", "ALLGATHER", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE")
"""The collectives in which each rank passes as many elements as any other."""
_GATHERS = ("ALLGATHER", "_ALLGATHER_BASE")


def blame_for_timeout(failure: Hypothesis, logs: Logs) -> Blame:
    """Return a `Blame` for a collective that timed out: the ranks that did not join, and the evidence for this."""
    waiting = sorted({e.rank for e in failure.events if e.kind in WAITING and e.rank is not None})
    silent = _silent_ranks(logs)
    # Messages that name ranks come first. Source lines come last, because ranks at different lines may all be right.
    for blame in (
        named(failure, waiting),
        _missing_members(failure, waiting),
        behind(failure, logs, waiting),
        other_operation(failure, waiting),
        _in_threads(logs.events, waiting),
        None if silent else unmatched(logs, waiting),
        other_line(logs.events, waiting, is_complete=not silent),
    ):
        if blame:
            return blame
    if silent and len(silent) <= max(1, len(waiting)):
        return Blame(silent, Basis.SILENT, waiting, Reason.OPERATIONS if _in_other_groups(logs) else None)
    return _blame_by_silence(failure, logs, waiting, silent)


def _blame_by_silence(failure: Hypothesis, logs: Logs, waiting: list[int], silent: list[int]) -> Blame:
    """Return a `Blame` for a timeout for which no printed line names the missing ranks, so only silence is evidence.

    `waiting` are the ranks that timed out, `silent` those that printed neither a timeout nor a lost connection. Silent
    ranks are blamed only if their last step is lower than the last step of the waiting ranks. A rank that waits alone
    after the others completed the training is blamed itself. Often the result names no rank.
    """
    if is_first(failure, logs):
        return Blame([], Basis.FIRST_OPERATION, waiting)
    if len(waiting) == 1 and any(e.kind is EventKind.COMPLETED for e in logs.events):
        return Blame(waiting, Basis.ALONE, waiting)
    if silent:
        return Blame(_behind_by_steps(silent, waiting, logs), Basis.MOST_SILENT, waiting)
    if len(waiting) == 1 and len(logs.ranks) > 1:
        return Blame([], Basis.LATE, waiting)
    is_complete = set(_known_ranks(logs)) <= set(logs.ranks)
    return Blame([], Basis.ALL_WAIT if len(waiting) > 1 and is_complete else Basis.ONE_SIDE, waiting)


def named(failure: Hypothesis, waiting: list[int]) -> Blame | None:
    """Return a `Blame` on the ranks named as missing by a monitored barrier or a desync report; None without one.

    A desync report is a watchdog's comparison of all ranks after a timeout. `waiting` are the ranks that timed out.
    """
    barrier = sorted({r for e in failure.events if e.kind is EventKind.MONITORED_BARRIER for r in e.facts.ranks})
    if barrier:
        return Blame(barrier, Basis.NAMED, waiting)
    reports = [e for e in failure.events if e.kind is EventKind.DESYNC]
    lagging = sorted({rank for e in reports for rank in e.facts.ranks})
    there = sorted({*waiting, *(e.rank for e in reports if e.rank is not None)})
    if not lagging:
        return None
    if len(there) == 1 and len(lagging) > 1:
        return Blame(there, Basis.EXTRA_OPERATION, there)
    # Of two ranks either may be wrong: one did not come, or the other has an operation too many.
    return Blame(lagging if len(there) > len(lagging) else [], Basis.NAMED, there)


def _missing_members(failure: Hypothesis, waiting: list[int]) -> Blame | None:
    """Return a `Blame` on the ranks that are missing while others create a process group; None if they are not known.

    The events of `failure` show them: a log has the missing member's index in the group, and the source line lists the
    members. `waiting` are the ranks that timed out.
    """
    missed = sorted({r for e in failure.events if e.facts.reason is Reason.GROUPS for r in e.facts.ranks})
    return Blame(missed, Basis.NAMED, waiting, Reason.OPERATIONS) if missed else None


def _in_other_groups(logs: Logs) -> bool:
    """Return whether ranks timed out in different operations, one of which is the creation of a process group."""
    operations = {event.facts.operation for event in places_of_waiting(logs.events)}
    return NEW_GROUP in operations and len(operations) > 1


def _behind_by_steps(silent: list[int], waiting: list[int], logs: Logs) -> list[int]:
    """Return the silent ranks whose last printed step is lower than the highest step of the ranks that timed out.

    `silent` are the ranks that reported neither a timeout nor a lost connection, `waiting` those that timed out. The
    list is empty without printed steps. It is also empty if several ranks are silent and all of them are behind,
    because a rank ended by the launcher loses the last lines that it printed.
    """
    steps = {rank: logs.ranks[rank].last_step for rank in (*silent, *waiting) if rank in logs.ranks}
    reached = max((s for rank in waiting if (s := steps.get(rank)) is not None), default=None)
    behind = [r for r in silent if reached is not None and (s := steps.get(r)) is not None and s < reached]
    # What a rank printed last is lost where the launcher ended it: then all silent ranks seem to be behind.
    return behind if len(behind) < max(2, len(silent)) else []


def behind(failure: Hypothesis, logs: Logs, waiting: list[int]) -> Blame | None:
    """Return a `Blame` on the ranks that had not yet enqueued the operation that timed out in its process group.

    `waiting` are the ranks that timed out, as `failure` reports. The result is None if no other rank's watchdog
    reports that its last enqueued operation was an earlier one.
    """
    timeouts = [e for e in failure.events if e.kind is EventKind.WATCHDOG_TIMEOUT and e.seq is not None]
    if not timeouts:
        return None
    missed = Counter(e.seq for e in timeouts).most_common(1)[0][0] or 0
    groups = {e.group for e in logs.events if e.kind is EventKind.WATCHDOG_STATUS and e.seq == missed}
    states = [e for e in logs.events if e.kind is EventKind.WATCHDOG_STATUS and (not groups or e.group in groups)]
    late = sorted({e.rank for e in states if e.rank is not None and e.rank not in waiting and _is_before(e, missed)})
    return Blame(late, Basis.BEHIND, waiting) if late else None


def _is_before(event: LogEvent, seq: int) -> bool:
    """Return whether a watchdog's report shows that the rank had not yet enqueued operation number `seq`."""
    return event.facts.enqueued is not None and event.facts.enqueued < seq


def other_operation(failure: Hypothesis, waiting: list[int]) -> Blame | None:
    """Return a `Blame` on ranks in a different operation than most, at one sequence number of one process group.

    The result is None if all timeouts in `failure` with the same sequence number name the same operation. The `ranks`
    of the result are empty if no operation has a majority. `waiting` are the ranks that timed out.
    """
    timeouts = {e.rank: e for e in failure.events if e.kind is EventKind.WATCHDOG_TIMEOUT and e.rank is not None}
    highest = max(timeouts, default=0)
    by_seq: dict[tuple[str | None, int | None], dict[int, object]] = {}
    for rank, event in timeouts.items():
        # In other collectives the ranks may pass different sizes.
        is_equal = event.facts.operation in _EQUAL_SIZES or _members(event) > highest
        issued = (event.facts.operation, event.facts.input_elements if is_equal else None)
        by_seq.setdefault((event.group, event.seq), {})[rank] = issued
    for issued_by in by_seq.values():
        counts = Counter(issued_by.values()).most_common(2)
        if len(counts) > 1:
            odd = sorted(r for r, issued in issued_by.items() if issued != counts[0][0])
            odd = odd if counts[0][1] > counts[1][1] else []
            return Blame(odd, Basis.OTHER_OPERATION, waiting, Reason.OPERATIONS)
    first: dict[str | None, dict[int, int]] = {}
    for event in failure.events:
        if event.kind is EventKind.WATCHDOG_TIMEOUT and event.rank is not None and event.seq is not None:
            seqs = first.setdefault(event.group, {})
            seqs[event.rank] = min(seqs.get(event.rank, event.seq), event.seq)
    if any(len(set(seqs.values())) > 1 for seqs in first.values()):
        return Blame([], Basis.OTHER_OPERATION, waiting, Reason.OPERATIONS)
    return None


def _members(event: LogEvent) -> int:
    """Return how many ranks a gather has, by what each passes and receives; 0 if it is no gather."""
    passed, received = event.facts.input_elements, event.facts.output_elements
    return received // passed if passed and received and received > passed and received % passed == 0 else 0


def unmatched(logs: Logs, waiting: list[int]) -> Blame | None:
    """Return a `Blame` on the ranks that did not issue the counterpart of a send or recv while their peers wait.

    `waiting` are the ranks that timed out. The result is None if no rank waited in a send or recv.
    """
    places = {event.rank: event for event in places_of_waiting(logs.events) if event.rank is not None}
    if len(places) < 2 or not _in_messages(places):
        return None
    return Blame(_find_unmatched(places, logs), Basis.MESSAGES, waiting, Reason.MESSAGES)


def other_line(events: Sequence[LogEvent], waiting: list[int], *, is_complete: bool) -> Blame | None:
    """Return a `Blame` on the ranks that timed out at a different source line than most ranks.

    Its `ranks` are empty in two cases where most ranks may wait for others than these: some rank is silent
    (`is_complete` is False), or the operation is one that some ranks leave early, such as a gather or broadcast, so
    that a later line is right. The result is None if all timed out at one line, or if any rank waited in a send or
    recv, whose two halves are on different lines anyway. `waiting` are the ranks that timed out.
    """
    places = places_of_waiting(events)
    gave_up = {event.rank: event for event in places}
    counts = Counter(event.source for event in gave_up.values()).most_common(2)
    if len(counts) < 2 or any(event.facts.operation in MESSAGES for event in gave_up.values()):
        return None
    is_majority = counts[0][1] > max(counts[1][1], len(gave_up) / 2)
    if not is_majority and not is_complete:
        return None
    odd = [event for event in gave_up.values() if event.source != counts[0][0]]
    # The members of a gather go on as soon as they have sent, so the root may wait for one that left it out.
    is_sure = is_majority and not any(
        event.facts.operation in _PASSED_EARLY and not _only_sends(event) for event in odd
    )
    is_sure = is_sure and not all(map(_may_have_sent, (e for e in gave_up.values() if e.source == counts[0][0])))
    # In the making of a group a rank waits for those that left it out.
    is_sure = is_sure and not any(event.facts.operation == NEW_GROUP for event in odd)
    ranks = sorted(event.rank for event in odd if event.rank is not None) if is_sure else []
    # Of two ranks that disagree either may be wrong.
    ranks = [event.rank for event in places if event.rank is not None] if len(places) == 2 and is_complete else ranks
    return Blame(ranks, Basis.OTHER_LINE, waiting, Reason.OPERATIONS)


def _may_have_sent(event: LogEvent) -> bool:
    """Return whether the rank of an event was in a broadcast or scatter and did not time out as a receiver.

    If no rank waits to receive in this operation, a rank that is now at another line may have received its part and
    continued, so its different line is not an error.
    """
    return event.facts.operation in _RECEIVED_EARLY and "recv operation" not in event.message


def _only_sends(event: LogEvent) -> bool:
    """Return whether the rank of an event was in a gather or reduce whose root is a different rank.

    Such a rank only sends, so it waits for no rank but the root. `event.facts.peer` is the root.
    """
    return (event.facts.peer or "").isdecimal() and event.facts.peer != str(event.rank)


def places_of_waiting(events: Sequence[LogEvent]) -> list[LogEvent]:
    """Return, in the order of ranks, the event that shows at which source line each rank timed out.

    Lost connections count as timeouts here; threads other than the main thread are left out.
    """
    gave_up: dict[int, LogEvent] = {}
    for event in events:
        if event.kind in _SAYS_WHERE and event.rank is not None and event.source and not event.facts.thread:
            gave_up.setdefault(event.rank, event)
    return [gave_up[rank] for rank in sorted(gave_up)]


def _silent_ranks(logs: Logs) -> list[int]:
    """Return the ranks of the job that reported neither a timeout nor a lost connection.

    These are ranks that occur in the logs, and also ranks that printed nothing at all: the few that are missing below
    the highest rank, or in a group whose size a collective's message shows.
    """
    spoke = {e.rank for e in logs.events if e.kind in GAVE_UP and e.rank is not None}
    # A rank of which a shared log has only lines that look like errors, as a report that is cut off, is not silent.
    listed = {e.rank for e in logs.events if e.kind in TABLE}
    cut = {
        rank
        for rank, log in logs.ranks.items()
        if not log.last_line and log.path and rank not in listed | spoke and not is_of_one_rank(log.path)
    }
    spoke |= cut
    shown = {*logs.ranks, *spoke}
    # A text that ends within a report does not show who is missing.
    absent = set(_known_ranks(logs)) - shown if not cut else set[int]()
    # The log of one of several nodes has a part of the ranks only.
    are_few = len(absent) < len(shown) or (len(absent) <= len(shown) and _size_of_group(logs) is not None)
    return sorted((shown | (absent if are_few else set())) - spoke)


def _size_of_group(logs: Logs) -> int | None:
    """Return the number of ranks in the default group, from the sizes of an all-gather that timed out; else None."""
    sizes = (
        event.facts.output_elements // event.facts.input_elements
        for event in logs.events
        if event.facts.operation in _GATHERS
        and event.facts.input_elements
        and event.facts.output_elements
        and event.group in (None, "default_pg", "0")
    )
    return max(sizes, default=None)


def _known_ranks(logs: Logs) -> list[int]:
    """Return all ranks of the job: from 0 up to the world size, or to the highest rank that the logs show."""
    shown = {*logs.ranks, *(e.rank for e in logs.events if e.rank is not None)}
    size = min(max([logs.world_size or 0, _size_of_group(logs) or 0, *(rank + 1 for rank in shown)]), RANKS_AT_MOST)
    return list(range(size))


def is_first(failure: Hypothesis, logs: Logs) -> bool:
    """Return whether the operation that timed out is the first of its process group.

    The ranks may then be unable to communicate at all. If the watchdog did not report the progress of each group, two
    other facts decide: the sequence numbers in `failure` are low, and no rank printed a step.
    """
    states = [e for e in logs.events if e.kind is EventKind.WATCHDOG_STATUS and e.facts.completed is not None]
    if states:
        return all((e.facts.completed or 0) < 0 for e in states)
    seqs = [e.seq for e in failure.events if e.kind is EventKind.WATCHDOG_TIMEOUT and e.seq is not None]
    return bool(seqs) and max(seqs) < _FIRST_OPERATIONS and not any(r.last_step for r in logs.ranks.values())


def _in_threads(events: Sequence[LogEvent], waiting: list[int]) -> Blame | None:
    """Return a `Blame` that names no rank, if threads other than the main thread timed out in collectives; else None.

    The threads of a process may issue collectives in a different order on one of the ranks; logs do not show on which
    rank. `waiting` are the ranks that timed out, according to `events`.
    """
    return Blame([], Basis.THREADS, waiting, Reason.OPERATIONS) if places_of_threads(events) else None


def places_of_threads(events: Sequence[LogEvent]) -> list[LogEvent]:
    """Return, for each rank, its first event in which a thread other than the main thread timed out in a collective.

    They are in the order of ranks; ranks without such an event are left out.
    """
    gave_up: dict[int, LogEvent] = {}
    for event in events:
        if event.kind in _SAYS_WHERE and event.facts.thread and event.facts.operation and event.rank is not None:
            gave_up.setdefault(event.rank, event)
    return [gave_up[rank] for rank in sorted(gave_up)]


def blame_for_lost_connection(failure: Hypothesis, logs: Logs) -> Blame:
    """Return a `Blame` on the ranks that ended without a message before the others lost their connections."""
    waiting = failure.ranks
    spoke = {e.rank for e in logs.events if e.kind in GAVE_UP}
    silent = [rank for rank in _known_ranks(logs) if rank not in spoke]
    if threads := _in_threads(logs.events, waiting):
        return threads
    listed = {e.rank for e in logs.events if e.kind in (EventKind.TORCHRUN_FAILURE, EventKind.TORCHRUN_ROOT_CAUSE)}
    gone = [rank for rank in silent if rank not in listed]
    if gone and len(gone) < len(listed):
        return Blame(gone, Basis.NOT_LISTED, waiting)
    if listed and listed <= set(waiting) and len(gone) > len(waiting) and logs.ranks.keys() >= set(gone):
        return Blame(waiting, Basis.LEFT_ALONE, waiting, Reason.OPERATIONS)
    if len(silent) > len(waiting):
        return Blame(_behind_by_steps(silent, waiting, logs), Basis.MOST_SILENT, waiting)
    return Blame(silent, Basis.SILENT, waiting)
