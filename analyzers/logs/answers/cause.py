"""The cause of a job's end: the first failure, and which ranks it blames."""

from dataclasses import dataclass, field
from enum import StrEnum

from analyzers.logs.answers.failures import Failure, find_failures
from analyzers.logs.answers.roles import Tier
from analyzers.logs.answers.votes import odd_ranks
from analyzers.logs.answers.waits import Blame, blame_for_lost_connection, blame_for_timeout, places_of_waiting
from analyzers.logs.loading import Logs
from analyzers.logs.model import EventKind, LogClass, LogEvent, Reason

NOBODY = (LogClass.TIME_LIMIT, LogClass.TERMINATED, LogClass.STARTUP, LogClass.NETWORK)
"""Classes that blame no rank."""
OF_REASON = {Reason.OPERATIONS: LogClass.MISMATCH, Reason.MESSAGES: LogClass.UNMATCHED_P2P}
"""The class of a timeout whose ranks waited in different places."""
TABLE = (EventKind.TORCHRUN_FAILURE, EventKind.TORCHRUN_ROOT_CAUSE)


class Certainty(StrEnum):
    """How sure the logs make the answer."""

    SHOWN = "shown"
    PROBABLE = "probable"
    SUSPECTED = "suspected"


@dataclass(frozen=True)
class Cause:
    """Why a job ended. `ranks` are to blame; empty where no rank is, or none is known."""

    kind: LogClass
    ranks: list[int]
    failure: Failure
    certainty: Certainty = Certainty.SHOWN
    blame: Blame | None = None
    killed: list[LogEvent] = field(default_factory=list)
    """For a host that ran out of memory: the processes that were killed."""

    waited: list[LogEvent] = field(default_factory=list)
    """For ranks that took different branches: where each gave up."""

    @property
    def lead(self) -> LogEvent:
        """The event that shows the cause best."""
        return self.failure.lead

    @property
    def reason(self) -> Reason | None:
        """What exactly happened, where the class has several causes."""
        reasons = (event.facts.reason for event in self.failure.events)
        return next((reason for reason in reasons if reason), None)


@dataclass(frozen=True)
class Answer:
    """The cause, None where the logs show no failure, and the failures that follow from it or stand beside it."""

    cause: Cause | None
    others: list[Failure]


def find_answer(logs: Logs) -> Answer:
    """Return why a job ended, by its logs."""
    failures = find_failures(logs)
    failures = [f for f in failures if not is_harmless(f, logs)]
    if not failures:
        return Answer(None, [])
    return Answer(cause_of(failures[0], failures, logs), failures[1:])


def is_harmless(failure: Failure, logs: Logs) -> bool:
    """Return whether the job recovered from a failure, such as a store that answered late before training began."""
    is_late_start = failure.role.tier is Tier.UNREACHED
    trained = any(r.last_step is not None for r in (*logs.ranks.values(), *logs.unranked))
    return (
        is_late_start and trained and all(e.kind is EventKind.STARTUP and "retry" in e.message for e in failure.events)
    )


def cause_of(failure: Failure, failures: list[Failure], logs: Logs) -> Cause:
    """Return a failure as the cause, with the ranks that it blames."""
    match failure.role.kind:
        case LogClass.COLLECTIVE_TIMEOUT:
            return timeout_cause(failure, logs)
        case LogClass.EARLY_EXIT:
            return lost_connection_cause(failure, logs)
        case LogClass.HOST_OOM:
            return host_memory_cause(failure, failures)
    kind = failure.role.kind
    ranks = ranks_to_blame(failure, logs)
    is_guess = kind is LogClass.MISMATCH and (not ranks or failure.role.tier is Tier.SOFT_HARDWARE)
    waited = places_of_waiting(logs.events) if kind is LogClass.MISMATCH else []
    return Cause(kind, ranks, failure, Certainty.PROBABLE if is_guess else certainty_of(failure), waited=waited)


def ranks_to_blame(failure: Failure, logs: Logs) -> list[int]:
    """Return the ranks that a failure of their own names."""
    kind = failure.role.kind
    if kind is LogClass.MISMATCH:
        return odd_ranks(failure.events) or odd_sizes(failure, logs)
    if kind in NOBODY:
        return []
    if kind is LogClass.NONFINITE_LOSS:
        named = sorted({rank for e in failure.events for rank in e.facts.ranks})
        # A loss that all ranks share is not finite on all of them.
        is_common = set(failure.ranks) >= set(logs.ranks)
        return named or ([] if is_common else failure.ranks)
    return failure.ranks or unranked(failure, logs)


def odd_sizes(failure: Failure, logs: Logs) -> list[int]:
    """Return the rank with a different size than the others.

    Either it alone or all others must have reported the mismatch.
    gloo aborts the rank whose buffer is smaller than what arrives: that with the odd size if its tensor is the smaller.
    """
    if not any(e.facts.reason is Reason.SIZES for e in failure.events):
        return []
    aborted = [e.rank for e in logs.events if e.kind in TABLE and e.facts.signal == "SIGABRT" and e.rank is not None]
    found = set(failure.ranks or aborted)
    others = sorted(set(logs.ranks) - found)
    if len(found) == len(others) == 1:
        # Of two ranks either may have the wrong size.
        return sorted({*found, *others})
    if len(found) == 1 and others:
        return sorted(found)
    return others if len(others) == 1 and len(found) > 1 else []


def unranked(failure: Failure, logs: Logs) -> list[int]:
    """Return the ranks of failures that were printed without one, where torchrun's table leaves no doubt.

    Ranks that fail before `init_process_group` print no prefix: three equal tracebacks, three ranks with exit code 1.
    """
    ended = [e for e in logs.events if e.kind in TABLE and e.rank is not None and (e.facts.exit_code or 0) > 0]
    said_why = {e.rank for e in logs.events if e.kind not in TABLE and e.kind is not EventKind.EXIT}
    unknown = sorted({e.rank for e in ended if e.rank is not None} - said_why)
    return unknown if 0 < len(unknown) <= sum(event.count for event in failure.events) else []


def lost_connection_cause(failure: Failure, logs: Logs) -> Cause:
    """Return lost connections with the rank that is gone, if anything shows it."""
    blame = blame_for_lost_connection(failure, logs)
    kind = LogClass.EARLY_EXIT if blame.ranks else LogClass.UNKNOWN
    return Cause(kind, blame.ranks, failure, Certainty.SUSPECTED, blame)


def host_memory_cause(failure: Failure, failures: list[Failure]) -> Cause:
    """Return a host without memory, with the ranks that were killed."""
    killed = [f for f in failures if f.role.tier is Tier.KILLED]
    ranks = failure.ranks or sorted({rank for f in killed for rank in f.ranks})
    return Cause(LogClass.HOST_OOM, ranks, failure, killed=[e for f in killed for e in f.events])


def timeout_cause(failure: Failure, logs: Logs) -> Cause:
    """Return a timeout as a cause, blaming the ranks that did not join.

    Ranks in a different operation make it a mismatch.
    """
    blame = blame_for_timeout(failure, logs)
    kind = OF_REASON.get(blame.reason, LogClass.COLLECTIVE_TIMEOUT) if blame.reason else LogClass.COLLECTIVE_TIMEOUT
    if not blame.ranks and failure.lead.facts.reason is Reason.MISSING_RANKS:
        kind = LogClass.STARTUP
    waited = places_of_waiting(logs.events)
    # Of ranks that blame each other not all are to blame.
    is_tie = set(blame.ranks) >= {event.rank for event in waited} and kind is not LogClass.COLLECTIVE_TIMEOUT
    certainty = Certainty.PROBABLE if blame.ranks and not is_tie else Certainty.SUSPECTED
    return Cause(kind, blame.ranks, failure, certainty, blame, waited=waited)


def certainty_of(failure: Failure) -> Certainty:
    """Return how sure a failure is the cause: an exit code alone does not say why a process ended."""
    return Certainty.SHOWN if failure.role.tier < Tier.STOPPED else Certainty.PROBABLE
