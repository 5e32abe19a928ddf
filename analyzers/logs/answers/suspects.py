"""Find the ranks to suspect if no rank printed a failure: by stacks, by caught errors, or by tensor sizes."""

from collections.abc import Mapping

from analyzers.logs.answers.failures import Failure
from analyzers.logs.answers.roles import Role, Tier
from analyzers.logs.answers.survived import TABLE, handled_errors
from analyzers.logs.answers.waits import Basis, Blame, places_of_waiting
from analyzers.logs.loading import Logs
from analyzers.logs.model import EventKind, LogClass, LogEvent, Reason

_SCALAR_BYTES = 8


def stuck_by_stacks(failure: Failure, logs: Logs) -> tuple[Failure, Blame] | None:
    """Return a `Failure` and a `Blame` for ranks whose stacks are outside of the collective that the others wait in.

    These stacks are printed by a timer of Python's fault handler. The timer ends the process with exit code 1 and
    without an exception, so `failure` consists of exit codes. The result is None if the stacks do not show such ranks.
    """
    stacks = {e.rank: e for e in logs.events if e.kind is EventKind.STACKS and e.source and e.rank is not None}
    waiting = [rank for rank, event in stacks.items() if event.facts.operation]
    stuck = [rank for rank, event in stacks.items() if not event.facts.operation]
    if not waiting or not stuck or not set(failure.ranks) & set(stacks):
        return None
    events = [stacks[rank] for rank in (*sorted(stuck), *sorted(waiting))]
    role = Role(LogClass.COLLECTIVE_TIMEOUT, Tier.TIMEOUT)
    return Failure(role, events, sorted(stacks), failure.order), Blame(sorted(stuck), Basis.STACKS, sorted(waiting))


def caught_alone(blame: Blame, logs: Logs) -> list[LogEvent]:
    """Return, for each rank in `blame.ranks`, an error that it caught and survived.

    Such an error explains why the rank skipped collectives. The list is empty unless all ranks in `blame.ranks`, and
    none of `blame.waiting`, caught an error.
    """
    by_rank: dict[int, LogEvent] = {}
    for event in handled_errors(logs):
        if event.rank is not None:
            by_rank.setdefault(event.rank, event)
    is_theirs = bool(blame.ranks) and by_rank.keys() >= set(blame.ranks) and not by_rank.keys() & set(blame.waiting)
    return [by_rank[rank] for rank in blame.ranks] if is_theirs else []


def odd_sizes(failure: Failure, logs: Logs) -> list[int]:
    """Return the rank whose tensor had another size than those of the others, or both ranks if there are only two.

    `failure` reports that gloo aborted a rank, because it received more than its buffer holds. In a ring of more than
    two ranks, the rank received this from its neighbour. Then either its own tensor is smaller than all others, or the
    neighbour's tensor is larger. A buffer of a few bytes holds a scalar, which means that the rank is in another
    collective than the others. The list is empty if the events do not show the rank.
    """
    if not any(e.facts.reason is Reason.SIZES for e in failure.events):
        return []
    aborted = [e.rank for e in logs.events if e.kind in TABLE and e.facts.signal == "SIGABRT" and e.rank is not None]
    found = set(failure.ranks or aborted)
    others = sorted(set(logs.ranks) - found)
    if len(found) == 1 and len(others) > 1:
        return _with_neighbour(next(iter(found)), others, failure, logs)
    if len(found) == len(others) == 1:
        # Of two ranks either may have the wrong size.
        return sorted({*found, *others})
    return others if len(others) == 1 and len(found) > 1 else []


def _with_neighbour(rank: int, others: list[int], failure: Failure, logs: Logs) -> list[int]:
    """Return `rank`, which gloo aborted, and also the neighbour that sent to it, if all `others` wait at one line.

    There are two exceptions. If only the neighbour waits at another line than the others, only the neighbour is
    returned: it sent a tensor of another size, so the aborted rank was in the collective of the others. If each of the
    others waits at a line of its own, the result is empty: then nothing shows where `rank` was. In all other cases,
    only `rank` is returned. `others` are all ranks but `rank`; `failure` has gloo's message about it.
    """
    expected = next((e.facts.output_elements for e in failure.events if e.facts.output_elements), 0) or 0
    places = {e.rank: e for e in places_of_waiting(logs.events) if e.rank != rank}
    lines = {(event.source, event.facts.operation) for event in places.values()}
    is_ring = all((event.facts.operation or "").startswith("all_") for event in places.values())
    if is_ring and len(lines) == len(places) > 1 and not _sender_elsewhere(rank, places):
        return []
    if expected <= _SCALAR_BYTES:
        return [rank]
    if len(lines) > 1:
        return _sender_elsewhere(rank, places) or [rank]
    # Rings of gloo: all_reduce receives from the next rank, all_gather from the one before.
    step = -1 if "gather" in (next(iter(lines))[1] or "") else 1
    neighbour = (rank + step) % (len(others) + 1)
    return sorted({rank, neighbour}) if neighbour in places else [rank]


def _sender_elsewhere(rank: int, places: Mapping[int | None, LogEvent]) -> list[int]:
    """Return, in a list, the neighbour that sent to `rank` in a ring of gloo, if it alone was at another line.

    `places` maps each other rank to the event that shows at which line it waited.
    """
    size = len(places) + 1
    for step, is_gather in ((1, False), (-1, True)):
        sender = places.get((rank + step) % size)
        others = {event.source for event in places.values() if event is not sender}
        operation = (sender.facts.operation or "") if sender else ""
        is_ring = operation.startswith("all_") and ("gather" in operation) == is_gather
        if sender and sender.rank is not None and is_ring and len(others) == 1 and sender.source not in others:
            return [sender.rank]
    return []
