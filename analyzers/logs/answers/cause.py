"""Find the cause of a job's end: the failure that explains the others, and the ranks that are to blame for it."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from msgspec.structs import replace as replace_event

from analyzers.case.context import Context
from analyzers.case.facts import CUT_OFF, EventKind, LogClass, LogEvent, Reason
from analyzers.case.hypothesis import Answer, Basis, Blame, Case, Certainty, DifferingCount, Hypothesis, Role, Tier
from analyzers.case.wording import shortened
from analyzers.failures.arbitration import arbitrate
from analyzers.failures.training import judged
from analyzers.logs.answers.failures import ENDS, TABLE, find_failures, handled_errors
from analyzers.logs.answers.waits import (
    blame_for_lost_connection,
    blame_for_timeout,
    places_of_threads,
    places_of_waiting,
)
from analyzers.logs.loading import Logs, is_of_one_rank
from analyzers.logs.reading.lines import step_in

_SCALAR_BYTES = 8


def _stuck_by_stacks(failure: Hypothesis, logs: Logs) -> tuple[Hypothesis, Blame] | None:
    """Return a `Hypothesis` and a `Blame` for ranks whose stacks are outside of the collective that the others wait in.

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
    return Hypothesis(role, events, sorted(stacks), failure.order), Blame(sorted(stuck), Basis.STACKS, sorted(waiting))


def _caught_alone(blame: Blame, logs: Logs) -> list[LogEvent]:
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


def _odd_sizes(failure: Hypothesis, logs: Logs) -> list[int]:
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


def _with_neighbour(rank: int, others: list[int], failure: Hypothesis, logs: Logs) -> list[int]:
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


# Find the rank that differs from the others, if each rank has compared itself with only one other rank.


def _odd_ranks(events: Sequence[LogEvent]) -> list[int]:
    """Return, in a list, the rank that is in most comparisons; empty in case of a tie.

    `events` are the comparisons: PyTorch's debug mode compares a rank with the first rank that differs from it. If rank
    2 passed another shape, ranks 0, 1 and 3 are compared with rank 2, and rank 2 with rank 0. Of these pairs (0, 2),
    (1, 2), (3, 2), (2, 0), rank 2 is in four and rank 0 in two.
    """
    pairs = {tuple(event.facts.ranks) for event in events if len(event.facts.ranks) == 2}
    counts = Counter(rank for pair in pairs for rank in pair)
    best = counts.most_common(2)
    if not best or (len(best) > 1 and best[0][1] == best[1][1]):
        return []
    return [best[0][0]]


# Find the rank that printed another count than all other ranks, in a line that all ranks print.
#
# If the tensor of a rank has another size, earlier lines often show the reason: the rank prints `rank 3: 2080
# trainable parameters`, where all others print 1040. Only whole numbers without a unit are compared, because times,
# sizes and losses differ between ranks of a healthy job.

_OWN_RANK = re.compile(r"\b[Rr]ank[ :=#]{0,2}\d{1,6}\b|^\W{0,2}\d{1,6}[\])]")
_NO_COUNT = re.compile(
    r"\d[.:]\d|\d ?(?:[mun\u00b5]?s|sec|seconds|min|[KMGT]i?B|bytes|%|/s)\b|0x|\bpid\b|\bport\b", re.IGNORECASE
)
"""Matches text with numbers that are not counts: decimals, times, sizes, addresses, process ids."""
# Of two different counts nothing shows which one is usual.
_RANKS_AT_LEAST = 3


def _find_differing_count(logs: Logs) -> DifferingCount | None:
    """Return the rank that printed another count than all other ranks, in a line that all ranks print.

    For example, one rank prints `100 batches` and all others print `125 batches`. The result is None if no rank printed
    such a count, if such lines point to different ranks, or if there are fewer than three ranks.
    """
    ranks = sorted(logs.ranks)
    if len(ranks) < _RANKS_AT_LEAST or not logs.ranks.keys() <= logs.said.keys():
        return None
    said = {rank: _by_line(logs.said[rank]) for rank in ranks}
    common = [line for line in said[ranks[0]] if all(line in lines for lines in said.values())]
    found = [count for line in common for count in _ranks_that_differ({rank: said[rank][line] for rank in ranks})]
    return found[-1] if len({count.rank for count in found}) == 1 else None


def _by_line(said: Sequence[str]) -> Mapping[tuple[str, int | None], str]:
    """Return {(line with `#` for each number, its step): its last text} for the lines of a rank that have numbers.

    The key identifies a line of the program: texts that differ only in digits have the same key, unless their steps
    differ. `said` has the last lines of the rank, the oldest first.
    """
    return {(re.sub(r"\d+", "#", _without_rank(text)), step_in(text)): text for text in said if re.search(r"\d", text)}


def _without_rank(text: str) -> str:
    return _OWN_RANK.sub("", text).strip()


def _ranks_that_differ(texts: Mapping[int, str]) -> Iterator[DifferingCount]:
    """Yield the one rank whose text differs from that of all others, if all others are equal; else nothing.

    `texts` maps each rank to its text of one line; texts with numbers that are not counts, such as times, are
    skipped.
    """
    counts = Counter(map(_without_rank, texts.values())).most_common()
    if len(counts) != 2 or counts[1][1] != 1:
        return
    rank = next(rank for rank, text in texts.items() if _without_rank(text) == counts[1][0])
    other = next(text for other, text in texts.items() if other != rank)
    if not _NO_COUNT.search(texts[rank]) and not _NO_COUNT.search(other):
        yield DifferingCount(rank, texts[rank], other)


_EXCERPTS_AT_MOST, _SAID_AT_MOST, _SAID_LENGTH = 20, 200, 20
_NOBODY = (LogClass.TIME_LIMIT, LogClass.TERMINATED, LogClass.STARTUP, LogClass.NETWORK)
"""The classes of failures for which normally no rank is to blame."""
_OF_REASON = {Reason.OPERATIONS: LogClass.MISMATCH, Reason.MESSAGES: LogClass.UNMATCHED_P2P}
"""{reason of a `Blame` for a timeout: class of the verdict}."""


def find_answer(logs: Logs) -> Answer:
    """Return why a job ended according to its logs: the cause, and the failures that are consequences of the cause."""
    found = find_failures(logs)
    # Warnings beside nothing worse: what they warn of did not happen.
    is_warned = all(_WARNED.match(event.message) for failure in found for event in failure.events)
    failures = [] if is_warned else [failure for failure in found if not _is_harmless(failure, logs)]
    if not failures:
        return Answer(_case_of_rows(logs))
    chosen = arbitrate(failures)
    if all(_may_have_survived(f, logs) for f in failures):
        case = Case(LogClass.UNKNOWN, [], chosen.winner, Certainty.SUSPECTED)
    else:
        case = cause_of(chosen.winner, failures, logs)
    unread = [line.text for file in logs.files for line in file.unread]
    if case.lead.message == CUT_OFF and unread:
        # A compiler puts a long path before what it says.
        case = replace(case, quote=shortened(_PATH_BEFORE.sub("", unread[0])))
    case = replace(
        case,
        events=logs.events,
        logs=logs.ranks,
        world_size=logs.world_size,
        rows=logs.rows,
        context=_context_of(case, logs),
    )
    return Answer(case, chosen.explained, chosen.independent)


def _context_of(case: Case, logs: Logs) -> Context:
    """Return what is kept of the logs and of the lines around a failure, without what errors say.

    Messages of errors often suggest settings, which are thus not those of the job.
    """
    text = "\n".join([logs.head, *(e.excerpt for e in case.failure.events[:_EXCERPTS_AT_MOST])])
    said = [line for e in logs.events[:_SAID_AT_MOST] for line in (*e.message.split("\n"), *e.details.split("\n"))]
    for line in {line.strip() for line in said}:
        if len(line) > _SAID_LENGTH and "=" in line:
            text = text.replace(line, "")
    return Context(text)


def _case_of_rows(logs: Logs) -> Case | None:
    """Return the case that the printed rows of numbers show although no error was printed; None if they show none."""
    clue = next((event for event in reversed(logs.events) if event.kind is EventKind.CLUE), None)
    rows = [row for row in logs.rows if row.is_finite]
    if rows:
        last = rows[-1]
        event = LogEvent(
            kind=EventKind.KNOWN,
            message=last.text,
            rank=last.rank,
            path=logs.rows_source,
            line=last.line,
            step=last.step,
        )
    elif clue:
        event = clue
    else:
        return None
    hypothesis = Hypothesis(Role(LogClass.DEAD_TRAINING, Tier.BROKEN_NUMBERS), [event], [], (0, 0, 0, 0, 0))
    case = Case(
        LogClass.DEAD_TRAINING,
        [],
        hypothesis,
        Certainty.PROBABLE,
        events=logs.events,
        logs=logs.ranks,
        world_size=logs.world_size,
        rows=rows,
    )
    kind = judged(case)
    if kind is LogClass.LOSS_SPIKE:
        top = max(rows, key=lambda row: row.values.get("grad_norm", row.values.get("loss", 0.0)))
        peak = replace_event(event, message=top.text, rank=top.rank, line=top.line, step=top.step)
        case = replace(case, failure=replace(hypothesis, events=[peak]))
    return replace(case, kind=kind) if kind else None


_WARNED = re.compile(r"^(?:\[\w+\]:\s?)*\[W(?:\d{3,4})? (?!.{0,300}\b(?:server socket|listen|bind)\b)")
"""Matches a warning of the loggers of C++ that another try may follow; of a port that is taken nothing more is said."""
_PATH_BEFORE = re.compile(r"^\S{30,300}:\d{1,6}:(?:\d{1,6}:)? ")


def _may_have_survived(failure: Hypothesis, logs: Logs) -> bool:
    """Return whether the program may have caught the exceptions of `failure` and continued its work.

    This is so if the job printed steps, and only tracebacks report the failure. An uncaught exception leaves other
    signs: PyTorch's hook prints `[rank1]:` before its traceback once the ranks have connected (printed steps prove that
    they have), and torchrun reports a worker that ended.
    """
    trained = any(r.last_step is not None for r in logs.ranks.values())
    ended = any(event.kind in ENDS for event in logs.events)
    return (
        trained
        and not ended
        and all(
            e.kind is EventKind.EXCEPTION and not e.facts.uncaught and is_of_one_rank(e.path) for e in failure.events
        )
    )


def _is_harmless(failure: Hypothesis, logs: Logs) -> bool:
    """Return whether the job trained in spite of a failure.

    For example, a store answered late before training began. Or the driver does not support a device of the machine;
    the job then does not use this device.
    """
    if not any(r.last_step is not None for r in (*logs.ranks.values(), *logs.unranked)):
        return False
    if failure.lead.facts.reason is Reason.UNSUPPORTED_DEVICE:
        return True
    is_late_start = failure.role.tier is Tier.UNREACHED
    return is_late_start and all(e.kind is EventKind.STARTUP and "retry" in e.message for e in failure.events)


def cause_of(failure: Hypothesis, failures: list[Hypothesis], logs: Logs) -> Case:
    """Return a `Case` for `failure`, the most probable cause of the job's end, with the ranks to blame.

    `failures` are all failures of the job, including `failure`.
    """
    match failure.role.kind:
        case LogClass.COLLECTIVE_TIMEOUT:
            return _timeout_cause(failure, logs)
        case LogClass.EARLY_EXIT:
            return _lost_connection_cause(failure, failures, logs)
        case LogClass.HOST_OOM:
            return _host_memory_cause(failure, failures)
        case LogClass.EXIT_CODE if found := _stuck_by_stacks(failure, logs):
            return Case(LogClass.COLLECTIVE_TIMEOUT, found[1].ranks, found[0], Certainty.PROBABLE, found[1])
    kind = failure.role.kind
    ranks = _ranks_to_blame(failure, logs)
    count = _find_differing_count(logs) if kind is LogClass.MISMATCH and len(ranks) > 1 else None
    count = count if count and count.rank in ranks else None
    ranks = [count.rank] if count else ranks
    is_guess = kind is LogClass.MISMATCH and (count or not ranks or failure.role.tier is Tier.SOFT_HARDWARE)
    waited = places_of_waiting(logs.events) if kind is LogClass.MISMATCH else []
    certainty = Certainty.PROBABLE if is_guess else _certainty_of(failure)
    if kind is LogClass.MISMATCH and not _odd_ranks(failure.events) and len(ranks) > 1:
        # One of several ranks differs, and nothing shows which.
        certainty = Certainty.SUSPECTED
    return Case(kind, ranks, failure, certainty, waited=waited, count=count)


def _ranks_to_blame(failure: Hypothesis, logs: Logs) -> list[int]:
    """Return the ranks that are at fault according to the events of a failure; empty if they show none."""
    kind = failure.role.kind
    if kind is LogClass.MISMATCH:
        return _odd_ranks(failure.events) or _odd_sizes(failure, logs)
    if kind in _NOBODY:
        # Arguments that only some ranks reject are those of their node.
        is_partial = failure.lead.facts.reason is Reason.BAD_ARGUMENTS and set(failure.ranks) < set(logs.ranks)
        return failure.ranks if is_partial else []
    if kind is LogClass.NONFINITE_LOSS:
        named = sorted({rank for e in failure.events for rank in e.facts.ranks})
        # A loss that all ranks share is not finite on all of them.
        is_common = set(failure.ranks) >= set(logs.ranks)
        return named or ([] if is_common else failure.ranks)
    return failure.ranks or unranked(failure, logs)


def unranked(failure: Hypothesis, logs: Logs) -> list[int]:
    """Return which ranks failed if the events of `failure` have no rank, from torchrun's table of failed workers.

    Ranks that fail before `init_process_group` print no prefix with a rank. They are the ranks in the table whose
    failure no other event explains: for example, three equal tracebacks match three ranks with exit code 1. The list is
    empty if there are more such ranks than events.
    """
    ended = [e for e in logs.events if e.kind in TABLE and e.rank is not None and (e.facts.exit_code or 0) > 0]
    said_why = {e.rank for e in logs.events if e.kind not in TABLE and e.kind is not EventKind.EXIT}
    unknown = sorted({e.rank for e in ended if e.rank is not None} - said_why)
    return unknown if 0 < len(unknown) <= sum(event.count for event in failure.events) else []


def _lost_connection_cause(failure: Hypothesis, failures: list[Hypothesis], logs: Logs) -> Case:
    """Return a `Case` for a job whose ranks lost their connections; it blames the rank that ended or left before that.

    The class says what happened to this rank: it aborted, ended early, caught an error and skipped collectives, or is
    unknown. `failure` has the events of the lost connections, `failures` are all failures of the job.
    """
    blame = blame_for_lost_connection(failure, logs)
    aborted = next((f for f in failures if f.role.tier is Tier.ABORTED and set(f.ranks) >= set(blame.ranks)), None)
    if aborted and blame.ranks:
        return Case(LogClass.SIGNAL, blame.ranks, aborted, Certainty.PROBABLE, blame)
    if caught := _caught_alone(blame, logs):
        blame = Blame(blame.ranks, Basis.CAUGHT, blame.waiting)
        waited = places_of_waiting(logs.events)
        return Case(LogClass.MISMATCH, blame.ranks, failure, Certainty.PROBABLE, blame, waited=waited, caught=caught)
    if blame.basis is Basis.LEFT_ALONE:
        return Case(LogClass.MISMATCH, blame.ranks, failure, Certainty.SUSPECTED, blame)
    if blame.basis is Basis.THREADS:
        return Case(LogClass.MISMATCH, [], failure, Certainty.SUSPECTED, blame, waited=_with_threads(logs))
    kind = LogClass.EARLY_EXIT if blame.ranks else LogClass.UNKNOWN
    certainty = Certainty.PROBABLE if blame.basis is Basis.NOT_LISTED else Certainty.SUSPECTED
    return Case(kind, blame.ranks, failure, certainty, blame)


def _host_memory_cause(failure: Hypothesis, failures: list[Hypothesis]) -> Case:
    """Return a `Case` which says that a host ran out of memory, with the ranks that were killed for this reason.

    `failure` reports the lack of memory. If it names no ranks, the ranks are those that were ended by SIGKILL in any of
    `failures`.
    """
    killed = [f for f in failures if f.role.tier is Tier.KILLED]
    ranks = failure.ranks or sorted({rank for f in killed for rank in f.ranks})
    return Case(LogClass.HOST_OOM, ranks, failure, killed=[e for f in killed for e in f.events])


def _timeout_cause(failure: Hypothesis, logs: Logs) -> Case:
    """Return a `Case` which says why ranks timed out in a collective (`failure`); it blames ranks that did not join.

    If the blamed ranks were in a different operation, the class is a mismatch. If the ranks to blame are unknown and
    ranks were missing from the start, the class is a failed start.
    """
    blame = blame_for_timeout(failure, logs)
    kind = _OF_REASON.get(blame.reason, LogClass.COLLECTIVE_TIMEOUT) if blame.reason else LogClass.COLLECTIVE_TIMEOUT
    if not blame.ranks and failure.lead.facts.reason is Reason.MISSING_RANKS:
        kind = LogClass.STARTUP
    waited = _with_threads(logs) if blame.basis is Basis.THREADS else places_of_waiting(logs.events)
    # Of ranks that blame each other not all are to blame.
    is_tie = set(blame.ranks) >= {event.rank for event in waited} and kind is not LogClass.COLLECTIVE_TIMEOUT
    is_tie = is_tie or blame.basis is Basis.MOST_SILENT
    certainty = Certainty.PROBABLE if blame.ranks and not is_tie else Certainty.SUSPECTED
    return Case(kind, blame.ranks, failure, certainty, blame, waited=waited)


def _with_threads(logs: Logs) -> list[LogEvent]:
    """Return the events that show at which line threads and ranks timed out in a collective.

    Events of threads other than the main thread come first, one for each rank, then those of the main threads.
    """
    return [*places_of_threads(logs.events), *places_of_waiting(logs.events)]


def _certainty_of(failure: Hypothesis) -> Certainty:
    """Return the certainty that a failure is the cause of the job's end.

    An exit code, for example, does not show why its process ended, so the cause is only probable.
    """
    return Certainty.SHOWN if failure.role.tier < Tier.STOPPED else Certainty.PROBABLE
