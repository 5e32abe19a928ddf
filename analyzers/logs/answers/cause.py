"""Find the cause of a job's end: the failure that explains the others, and the ranks that are to blame for it."""

from dataclasses import dataclass, field
from enum import StrEnum

from analyzers.logs.answers.differing_counts import DifferingCount, find_differing_count
from analyzers.logs.answers.failures import Failure, find_failures
from analyzers.logs.answers.roles import Tier
from analyzers.logs.answers.survived import ENDS, TABLE
from analyzers.logs.answers.suspects import caught_alone, odd_sizes, stuck_by_stacks
from analyzers.logs.answers.votes import odd_ranks
from analyzers.logs.answers.waits import (
    Basis,
    Blame,
    blame_for_lost_connection,
    blame_for_timeout,
    places_of_threads,
    places_of_waiting,
)
from analyzers.logs.loading import Logs, is_of_one_rank
from analyzers.logs.model import EventKind, LogClass, LogEvent, Reason

_NOBODY = (LogClass.TIME_LIMIT, LogClass.TERMINATED, LogClass.STARTUP, LogClass.NETWORK)
"""The classes of failures for which normally no rank is to blame."""
_OF_REASON = {Reason.OPERATIONS: LogClass.MISMATCH, Reason.MESSAGES: LogClass.UNMATCHED_P2P}
"""{reason of a `Blame` for a timeout: class of the verdict}."""


class Certainty(StrEnum):
    """The certainty of a `Cause`, judged by the logs.

    `SHOWN`: a line of the log shows the cause. `SUSPECTED`: there is only weak evidence.
    """

    SHOWN = "shown"
    PROBABLE = "probable"
    SUSPECTED = "suspected"


@dataclass(frozen=True)
class Cause:
    """The reason why a job ended: a failure, its class (`kind`), and the ranks to blame for it.

    `ranks` is empty if no rank is to blame, or if nothing shows which rank is. `blame` is set if ranks waited for
    others: it names the ranks that they waited for, and the evidence.
    """

    kind: LogClass
    ranks: list[int]
    failure: Failure
    certainty: Certainty = Certainty.SHOWN
    blame: Blame | None = None
    killed: list[LogEvent] = field(default_factory=list)
    """The events that report killed processes; only filled if the host ran out of memory."""

    waited: list[LogEvent] = field(default_factory=list)
    """For a mismatch or a timeout, the events that show where each rank timed out or lost its connection."""
    caught: list[LogEvent] = field(default_factory=list)
    """The errors that the ranks to blame had caught before they skipped collectives."""
    count: DifferingCount | None = None
    """The count in a line of the rank to blame that differs from that of all other ranks; None if no count decided."""

    @property
    def lead(self) -> LogEvent:
        """The event in the logs that shows the cause best."""
        return self.failure.lead

    @property
    def reason(self) -> Reason | None:
        """The specific reason of the cause, for classes that have several; None if no event has one."""
        reasons = (event.facts.reason for event in self.failure.events)
        return next((reason for reason in reasons if reason), None)


@dataclass(frozen=True)
class Answer:
    """The cause of a job's end, and all other failures (`others`); `cause` is None if the logs show no failure."""

    cause: Cause | None
    others: list[Failure]


def find_answer(logs: Logs) -> Answer:
    """Return why a job ended according to its logs: the cause, and the failures that are consequences of the cause."""
    failures = find_failures(logs)
    failures = [f for f in failures if not _is_harmless(f, logs)]
    if not failures:
        return Answer(None, [])
    if all(_may_have_survived(f, logs) for f in failures):
        return Answer(Cause(LogClass.UNKNOWN, [], failures[0], Certainty.SUSPECTED), failures[1:])
    return Answer(cause_of(failures[0], failures, logs), failures[1:])


def _may_have_survived(failure: Failure, logs: Logs) -> bool:
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


def _is_harmless(failure: Failure, logs: Logs) -> bool:
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


def cause_of(failure: Failure, failures: list[Failure], logs: Logs) -> Cause:
    """Return a `Cause` for `failure`, the most probable cause of the job's end, with the ranks to blame.

    `failures` are all failures of the job, including `failure`.
    """
    match failure.role.kind:
        case LogClass.COLLECTIVE_TIMEOUT:
            return _timeout_cause(failure, logs)
        case LogClass.EARLY_EXIT:
            return _lost_connection_cause(failure, failures, logs)
        case LogClass.HOST_OOM:
            return _host_memory_cause(failure, failures)
        case LogClass.EXIT_CODE if found := stuck_by_stacks(failure, logs):
            return Cause(LogClass.COLLECTIVE_TIMEOUT, found[1].ranks, found[0], Certainty.PROBABLE, found[1])
    kind = failure.role.kind
    ranks = _ranks_to_blame(failure, logs)
    count = find_differing_count(logs) if kind is LogClass.MISMATCH and len(ranks) > 1 else None
    count = count if count and count.rank in ranks else None
    ranks = [count.rank] if count else ranks
    is_guess = kind is LogClass.MISMATCH and (count or not ranks or failure.role.tier is Tier.SOFT_HARDWARE)
    waited = places_of_waiting(logs.events) if kind is LogClass.MISMATCH else []
    certainty = Certainty.PROBABLE if is_guess else _certainty_of(failure)
    if kind is LogClass.MISMATCH and not odd_ranks(failure.events) and len(ranks) > 1:
        # One of several ranks differs, and nothing shows which.
        certainty = Certainty.SUSPECTED
    return Cause(kind, ranks, failure, certainty, waited=waited, count=count)


def _ranks_to_blame(failure: Failure, logs: Logs) -> list[int]:
    """Return the ranks that are at fault according to the events of a failure; empty if they show none."""
    kind = failure.role.kind
    if kind is LogClass.MISMATCH:
        return odd_ranks(failure.events) or odd_sizes(failure, logs)
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


def unranked(failure: Failure, logs: Logs) -> list[int]:
    """Return which ranks failed if the events of `failure` have no rank, from torchrun's table of failed workers.

    Ranks that fail before `init_process_group` print no prefix with a rank. They are the ranks in the table whose
    failure no other event explains: for example, three equal tracebacks match three ranks with exit code 1. The list is
    empty if there are more such ranks than events.
    """
    ended = [e for e in logs.events if e.kind in TABLE and e.rank is not None and (e.facts.exit_code or 0) > 0]
    said_why = {e.rank for e in logs.events if e.kind not in TABLE and e.kind is not EventKind.EXIT}
    unknown = sorted({e.rank for e in ended if e.rank is not None} - said_why)
    return unknown if 0 < len(unknown) <= sum(event.count for event in failure.events) else []


def _lost_connection_cause(failure: Failure, failures: list[Failure], logs: Logs) -> Cause:
    """Return a `Cause` for a job whose ranks lost their connections; it blames the rank that ended or left before that.

    The class says what happened to this rank: it aborted, ended early, caught an error and skipped collectives, or is
    unknown. `failure` has the events of the lost connections, `failures` are all failures of the job.
    """
    blame = blame_for_lost_connection(failure, logs)
    aborted = next((f for f in failures if f.role.tier is Tier.ABORTED and set(f.ranks) >= set(blame.ranks)), None)
    if aborted and blame.ranks:
        return Cause(LogClass.SIGNAL, blame.ranks, aborted, Certainty.PROBABLE, blame)
    if caught := caught_alone(blame, logs):
        blame = Blame(blame.ranks, Basis.CAUGHT, blame.waiting)
        waited = places_of_waiting(logs.events)
        return Cause(LogClass.MISMATCH, blame.ranks, failure, Certainty.PROBABLE, blame, waited=waited, caught=caught)
    if blame.basis is Basis.LEFT_ALONE:
        return Cause(LogClass.MISMATCH, blame.ranks, failure, Certainty.SUSPECTED, blame)
    if blame.basis is Basis.THREADS:
        return Cause(LogClass.MISMATCH, [], failure, Certainty.SUSPECTED, blame, waited=_with_threads(logs))
    kind = LogClass.EARLY_EXIT if blame.ranks else LogClass.UNKNOWN
    certainty = Certainty.PROBABLE if blame.basis is Basis.NOT_LISTED else Certainty.SUSPECTED
    return Cause(kind, blame.ranks, failure, certainty, blame)


def _host_memory_cause(failure: Failure, failures: list[Failure]) -> Cause:
    """Return a `Cause` which says that a host ran out of memory, with the ranks that were killed for this reason.

    `failure` reports the lack of memory. If it names no ranks, the ranks are those that were ended by SIGKILL in any of
    `failures`.
    """
    killed = [f for f in failures if f.role.tier is Tier.KILLED]
    ranks = failure.ranks or sorted({rank for f in killed for rank in f.ranks})
    return Cause(LogClass.HOST_OOM, ranks, failure, killed=[e for f in killed for e in f.events])


def _timeout_cause(failure: Failure, logs: Logs) -> Cause:
    """Return a `Cause` which says why ranks timed out in a collective (`failure`); it blames ranks that did not join.

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
    return Cause(kind, blame.ranks, failure, certainty, blame, waited=waited)


def _with_threads(logs: Logs) -> list[LogEvent]:
    """Return the events that show at which line threads and ranks timed out in a collective.

    Events of threads other than the main thread come first, one for each rank, then those of the main threads.
    """
    return [*places_of_threads(logs.events), *places_of_waiting(logs.events)]


def _certainty_of(failure: Failure) -> Certainty:
    """Return the certainty that a failure is the cause of the job's end.

    An exit code, for example, does not show why its process ended, so the cause is only probable.
    """
    return Certainty.SHOWN if failure.role.tier < Tier.STOPPED else Certainty.PROBABLE
