"""Write the titles of findings on ranks that issued different operations: the operation and line of each rank."""

from collections.abc import Callable

from analyzers.logs.answers.cause import Cause
from analyzers.logs.answers.waits import NEW_GROUP, Basis
from analyzers.logs.findings.wording import at_line, at_step, first_with, operation_name, place, quoted, who
from analyzers.logs.model import LogEvent, Reason
from analyzers.words import agree, rank_names


def mismatch(cause: Cause) -> str:
    """Return the title for ranks that issued different operations, with the operation of each rank."""
    lead = first_with(cause, "operation")
    if cause.blame and cause.blame.basis in _BY_BASIS:
        return _BY_BASIS[cause.blame.basis](cause)
    if any(event.facts.operation == NEW_GROUP for event in cause.waited):
        return _different_groups(cause)
    if cause.reason is Reason.SIZES:
        return _different_sizes(cause)
    if cause.reason is Reason.MODELS:
        return f"{who(lead.facts.ranks)} have models with different parameters"
    return f"{' while '.join(_fingerprint_sides(cause))}{at_step(lead)}"


def _fingerprint_sides(cause: Cause) -> list[str]:
    """Return the call of each rank, such as `rank 1 called REDUCE [20, 10] (app/a.py:4, in main)`.

    The ranks to blame come first. Each rank's own error has its operation and line; if this error is missing in the
    logs, the operation comes from the errors of other ranks.
    """
    calls = {e.facts.ranks[0]: (e.facts.operation, at_line(e)) for e in fingerprints(cause)}
    for event in fingerprints(cause):
        calls.setdefault(event.facts.ranks[1], (event.facts.other_operation, ""))
    by_call: dict[tuple[str | None, str], list[int]] = {}
    for rank in sorted(calls, key=lambda rank: (rank not in cause.ranks, rank)):
        by_call.setdefault(calls[rank], []).append(rank)
    return [f"{rank_names(ranks)} called {operation}{where}" for (operation, where), ranks in by_call.items()]


def fingerprints(cause: Cause) -> list[LogEvent]:
    """Return the events in which PyTorch's debug mode compares the operation of one rank with that of another rank."""
    return [e for e in cause.failure.events if len(e.facts.ranks) == 2 and e.facts.operation]


def _different_sizes(cause: Cause) -> str:
    """Return the title for tensors of different sizes, with the lines at which the other ranks lost the connection."""
    lead = first_with(cause, "operation")
    known = {event.rank for event in cause.waited}
    are_others = len(cause.ranks) == 1 or (cause.ranks and known - {*cause.ranks})
    whom = f"{'one of ' if are_others and len(cause.ranks) > 1 else ''}{who(cause.ranks, 'ranks')}"
    whom += " and the others" if are_others else ""
    where = f"; {waiting_places(cause)}" if cause.waited else ""
    if cause.count:
        where = f"; it printed `{cause.count.text}`, the others `{cause.count.others}`{where}"
    return f"{whom} passed different sizes to one collective: {_sizes_of(cause)}{place(lead)}{at_step(lead)}{where}"


def _sizes_of(cause: Cause) -> str:
    """Return a clause on the number of bytes that arrived and the number that gloo expected."""
    facts = cause.lead.facts
    if facts.input_elements is None:
        return "a message does not fit its buffer"
    return f"{facts.input_elements} bytes arrived where {facts.output_elements} were expected"


def _different_timeouts(cause: Cause) -> str:
    """Return the title for ranks that wait in different operations, naming each operation with its ranks."""
    by_operation: dict[str, list[int]] = {}
    for event in cause.failure.events:
        if event.rank is not None and event.facts.operation:
            by_operation.setdefault(operation_name(event), []).append(event.rank)
    sides = ", ".join(f"{rank_names(ranks)} in {name}" for name, ranks in by_operation.items())
    return f"ranks wait for each other in different operations: {sides}"


def _different_lines(cause: Cause) -> str:
    """Return the title for ranks that waited at different lines, with the line of each rank."""
    if len(cause.ranks) == len(cause.waited):
        return f"{who(cause.ranks)} took different branches, or one left a loop earlier: {waiting_places(cause)}"
    return (
        f"{who(cause.ranks)} took a different branch than the others, or left a loop earlier: {waiting_places(cause)}"
    )


def _caught_and_went_on(cause: Cause) -> str:
    """Return the title for ranks that caught an error and skipped collectives, with where the other ranks wait."""
    error = cause.caught[0]
    left_out = (
        f"{who(cause.ranks)} caught an error{place(error)}{at_step(error)}, left out the collectives of that step"
    )
    return f"{left_out} and ended before the others ({waiting_places(cause)}): {quoted(error)}"


def left_alone(cause: Cause) -> str:
    """Return the title for ranks that waited in a collective when all other ranks had ended with exit code 0."""
    operation = first_with(cause, "operation").facts.operation or "a collective"
    return (
        f"{who(cause.ranks)} issued {operation}{at_line(cause.lead)} when all other ranks had ended, or were about to:"
        f" torchrun reports no other failure"
    )


def _in_threads(cause: Cause) -> str:
    """Return the title for collectives of one process group that are issued by both a thread and the main thread.

    It says where each thread waits.
    """
    return (
        "a thread and the main thread issue collectives of one process group, whose order may differ between ranks:"
        f" {waiting_places(cause)}"
    )


def _different_groups(cause: Cause) -> str:
    """Return the title for ranks that created different process groups, or created them in a different order.

    It says where each rank waits.
    """
    return f"{who(cause.ranks)} did not make the same process groups as the others: {waiting_places(cause)}"


def waiting_places(cause: Cause) -> str:
    """Return the lines at which ranks waited for each other, as `rank 0 waits in barrier (a.py:9, in main), ...`."""
    by_line: dict[str, list[int]] = {}
    for event in cause.waited:
        if event.rank is not None:
            by_line.setdefault(f"{event.facts.operation or 'a collective'}{at_line(event)}", []).append(event.rank)
    return ", ".join(
        f"{rank_names(ranks)} {agree(ranks, 'waits', 'wait')} in {where}" for where, ranks in by_line.items()
    )


_BY_BASIS: dict[Basis, Callable[[Cause], str]] = {
    Basis.OTHER_OPERATION: _different_timeouts,
    Basis.OTHER_LINE: _different_lines,
    Basis.CAUGHT: _caught_and_went_on,
    Basis.LEFT_ALONE: left_alone,
    Basis.THREADS: _in_threads,
}
