"""Group events into the failures of a job. A failure has the same class and source line on all its ranks.

The failures are sorted by how probable each is as the cause of the job's end. Three kinds of events are dropped before:
those that are no failure, those that the program survived, and those that only follow from an order to stop.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from analyzers.case.facts import EventKind, LogClass, LogEvent, Reason
from analyzers.case.hypothesis import Hypothesis, Role, Tier
from analyzers.logs.answers.roles import GAVE_UP, role_of
from analyzers.logs.loading import Logs, is_of_one_rank

TABLE = (EventKind.TORCHRUN_FAILURE, EventKind.TORCHRUN_ROOT_CAUSE)
_SAYS_DONE = re.compile(
    r"^\W*(?:\[?rank[ :=]?\d+\]?\W*)?(?:(?:training|train|job|run|all(?: \w+)?|everything)(?: is)? )?"
    r"(?:done|finished|complete|completed|finished training|training done)\W*$",
    re.IGNORECASE,
)
"""Matches a last line of a rank which says that the job ended well: `done`, `all steps done`, `Finished training!`."""
_CAUGHT_KINDS = (
    *(EventKind.EXCEPTION, EventKind.DATALOADER_WORKER, EventKind.OUT_OF_MEMORY, EventKind.HOST_OUT_OF_MEMORY),
    EventKind.DISK_FULL,
)
"""The kinds of errors that a rank raises itself and that its program can catch."""
ENDS = (*TABLE, EventKind.EXIT, EventKind.SIGNAL)


@dataclass(frozen=True)
class Occurrence:
    """An event that reports a failure, with its class and tier (`role`) and its position in the logs.

    A tier rates how probably the event is the cause (lowest: most probably). `clock` is the last time printed in its
    log up to the event, in ns since 1970 (0: none); `file` is the index of this log in `Logs.files`.
    """

    event: LogEvent
    role: Role
    clock: int
    file: int
    turn: int
    """The place of its attempt: of attempts in one log the last one counts first, of torchrun's folders the first."""

    @property
    def order(self) -> tuple[int, int, int, int, int]:
        """The sort key that puts the more probable cause of two failures first."""
        return (self.turn, self.role.tier, self.clock, self.file, self.event.line)


def _without_completed(found: list[Occurrence], logs: Logs) -> list[Occurrence]:
    """Return the failure events in `found` except for those made harmless by a line such as `Training completed`.

    Three kinds of events are left out: events before this line in the same log, events of earlier starts of the job,
    and lost connections in a log with such a line, because ranks disconnect when they end.
    """
    ends: dict[int, int] = {}
    for event, file in zip(logs.events, logs.files_of, strict=True):
        if event.kind is EventKind.COMPLETED:
            ends[file] = max(ends.get(file, 0), event.line)
    last = max((e.attempt for e in logs.events if e.kind is EventKind.COMPLETED), default=-1)
    return [
        o
        for o in found
        # A connection that is lost after the end is how ranks part.
        if not (o.event.line < ends.get(o.file, 0) or o.event.attempt < last)
        and not (o.file in ends and o.role.tier >= Tier.LOST_CONNECTION)
    ]


def _without_recovered(found: list[Occurrence], logs: Logs) -> list[Occurrence]:
    """Return `found`, all failure events, if one of them is from the last start of the job; else an empty list.

    In the second case the job recovered. A start of the job (attempt) that printed nothing does not count as the last
    one.
    """
    last = max(logs.attempts, default=0)
    return found if any(o.event.attempt == last for o in found) else [o for o in found if o.event.attempt > last]


def _without_handled(found: list[Occurrence], logs: Logs) -> list[Occurrence]:
    """Return the failure events in `found` without errors that the program caught and survived.

    An error that seems handled is kept if nothing else explains how its rank ended.
    """
    done = {rank for rank, log in logs.ranks.items() if _SAYS_DONE.match(log.last_line)}
    handled = [o for o in found if is_handled(o, found, logs) or _is_before_end(o.event, done)]
    others = [o for o in found if o not in handled]
    explaining = [o for o in handled if _explains_end(o, handled, others, logs) and not _is_replaced(o, found)]
    return [o for o in found if o in others or o in explaining]


def _is_logged(event: LogEvent, logs: Logs) -> bool:
    """Return whether a logger printed an error, and the only log of the job does not end with it."""
    return event.facts.logged and not (event.facts.ends_log and len(logs.files) == 1)


def is_handled(occurrence: Occurrence, found: Sequence[Occurrence], logs: Logs) -> bool:
    """Return whether the program continued after an error, or the log shows otherwise that the error was caught.

    `occurrence` is the event of the error; `found` are all failure events of the job.
    """
    event = occurrence.event
    # A lost connection or a timeout shows that another rank is gone, whichever thread reports it.
    if event.facts.survived or _is_logged(event, logs) or (event.facts.thread and event.kind not in GAVE_UP):
        return True
    if _is_replaced(occurrence, found):
        return True
    if event.kind not in _CAUGHT_KINDS or event.facts.uncaught or not is_of_one_rank(event.path):
        return False
    # One process prints only one traceback that ends it, the last one; which one that is, repetitions do not tell.
    independent = [o.event for o in found if o.file == occurrence.file and _is_independent(o.event)]
    if event.kind is not EventKind.EXCEPTION:
        return any(other.facts.uncaught and other.line > event.line for other in independent)
    return event.count > 1 or any(other.line > event.line or other.count > 1 for other in independent)


def _is_replaced(occurrence: Occurrence, found: Sequence[Occurrence]) -> bool:
    """Return whether a rank that handled an error then waited in a collective at the same line as another rank.

    The job then continued without the part of the program that failed, so the error (`occurrence`) did not end it. A
    `finally` block, in contrast, waits at a line where no other rank is; then the error is the cause. `found` are all
    failure events of the job.
    """
    event = occurrence.event
    if event.kind in GAVE_UP:
        return False
    after = [o.event for o in found if o.file == occurrence.file and event.message in o.event.chain]
    places = {e.source for e in after if e.kind in GAVE_UP and e.source}
    return any(o.event.source in places and o.event.rank != event.rank and not o.event.chain for o in found)


def _is_before_end(event: LogEvent, done: Collection[int]) -> bool:
    """Return whether a rank must have caught the error in `event`, because its log ends with a message of success.

    `done` are all ranks whose last line is such a message. The log must be that of this rank alone.
    """
    return (
        event.rank in done and not event.facts.uncaught and event.kind in _CAUGHT_KINDS and is_of_one_rank(event.path)
    )


def _is_independent(event: LogEvent) -> bool:
    """Return whether an event is an exception of the main thread that was not raised because of another exception."""
    return event.kind is EventKind.EXCEPTION and bool(event.source) and not (event.chain or event.facts.thread)


def _explains_end(
    occurrence: Occurrence, handled: Sequence[Occurrence], others: Sequence[Occurrence], logs: Logs
) -> bool:
    """Return whether an error that looks handled ended its rank after all, because nothing else explains this end.

    `occurrence` is the event of this error, `handled` are all errors that look handled, and `others` are the remaining
    failure events. If `others` is empty, or if the error is a loss that is not finite, the result is False.
    """
    event = occurrence.event
    if occurrence.role.kind is LogClass.NONFINITE_LOSS or not others:
        return False
    ends = [e for e in logs.events if e.kind in ENDS and e.attempt == event.attempt]
    if event.rank is None or not ends:
        # Without a launcher's words, or a rank, nothing shows that the process went on, unless its log does.
        return not (event.facts.survived or event.facts.thread) and event.count == 1
    own = [e for e in ends if e.rank == event.rank and (e.facts.exit_code or 0) > 0]
    said_why = any(o.event.rank == event.rank and o.event.kind not in ENDS for o in others)
    is_last = not any(o.file == occurrence.file and o.event.line > event.line for o in handled)
    return bool(own) and not said_why and is_last


def handled_errors(logs: Logs) -> list[LogEvent]:
    """Return the events of errors that ranks reported and survived, in the order of the logs."""
    last = max(logs.attempts, default=0) if logs.is_of_attempts else 0
    # What an earlier attempt reported may have ended it.
    return [e for e in logs.events if e.attempt >= last and (e.kind is EventKind.SKIPPED_WORK or _was_handled(e, logs))]


def _was_handled(event: LogEvent, logs: Logs) -> bool:
    is_wait = event.kind in (EventKind.NAN, *GAVE_UP)
    return not is_wait and bool(event.facts.survived or _is_logged(event, logs) or event.facts.thread)


@dataclass(frozen=True)
class FailedAttempt:
    """An attempt in a log of several: the event that shows best why it failed, and the steps of its start and end."""

    lead: LogEvent
    start: int | None
    end: int | None

    @property
    def length(self) -> int | None:
        """The number of steps that it made; None if it is unknown."""
        return None if self.start is None or self.end is None else self.end - self.start + 1


def failed_attempts(logs: Logs) -> list[FailedAttempt]:
    """Return the attempts before the last one in a log of several, the earliest first; empty for other logs."""
    if not logs.is_of_attempts:
        return []
    last = max(logs.attempts)
    by_attempt: dict[int, list[LogEvent]] = {}
    for event in logs.events:
        if event.attempt < last:
            by_attempt.setdefault(event.attempt, []).append(event)
    found = []
    for _, events in sorted(by_attempt.items()):
        roles = [(role.tier, n) for n, event in enumerate(events) if (role := role_of(event))]
        if roles:
            start = next((event.step for event in events if event.kind is EventKind.STARTED), None)
            ends = [event.step for event in events if event.step is not None and event.kind is not EventKind.STARTED]
            found.append(FailedAttempt(events[min(roles)[1]], start, max(ends, default=None)))
    return found


def count_closed(logs: Logs) -> int:
    """Return how many processes the launcher had to ask to end, because they continued after the others had ended.

    The result is 0 if the launcher restarted the job, because it ends all processes before a restart.
    """
    if max(logs.attempts, default=0) > 0:
        return 0
    return sum(event.count for event in logs.events if event.facts.reason is Reason.CLOSED)


def has_completed(logs: Logs) -> bool:
    """Return whether the logs report the completion of the training, in an event or in the last line of a rank."""
    last = [rank.last_line for rank in (*logs.ranks.values(), *logs.unranked)]
    return any(event.kind is EventKind.COMPLETED for event in logs.events) or any(map(_SAYS_DONE.match, last))


_WORDLESS = (LogClass.OOM, LogClass.HOST_OOM, LogClass.DATALOADER_WORKER, LogClass.COLLECTIVE_TIMEOUT,
            LogClass.MISMATCH, LogClass.UNUSED_PARAMETERS, LogClass.EXIT_CODE, LogClass.NONFINITE_LOSS)  # fmt: skip
"""The classes of failures whose events count as one failure even if their source lines and messages differ."""
_ENDED_BY_SIGTERM = (Tier.KILLED, Tier.EXIT_CODE, Tier.LOST_CONNECTION, Tier.ABORTED, Tier.VAGUE, Tier.NATIVE_CRASH,
                    Tier.TIMEOUT, Tier.STUCK_WATCHDOG, Tier.NETWORK)  # fmt: skip
"""The tiers (`Tier`) of failures that ranks report if the launcher or the scheduler stops them."""


def find_failures(logs: Logs) -> list[Hypothesis]:
    """Return the failures of a job, the most probable cause first."""
    last = max(logs.attempts, default=0)
    found = [
        Occurrence(event, role, clock, file, last - event.attempt if logs.is_of_attempts else event.attempt)
        for event, clock, file in zip(logs.events, logs.clocks, logs.files_of, strict=True)
        if (role := role_of(event))
    ]
    # Recovery is judged by what is left: an error that was handled does not mean that the last start failed.
    found = _without_recovered(_without_handled(_without_completed(found, logs), logs), logs)
    found = _without_explained(_without_stopped(_without_forced(found, logs)))
    groups: dict[tuple[object, ...], list[Occurrence]] = {}
    for occurrence in found:
        groups.setdefault(_group_key(occurrence), []).append(occurrence)
    return sorted((_failure_of(group) for group in groups.values()), key=lambda failure: failure.order)


def _group_key(occurrence: Occurrence) -> tuple[object, ...]:
    """Return a key that is equal for two events if they report the same failure, for example on two ranks.

    `occurrence` is an event with its class. The key has the attempt, the class, and for most classes the source line.
    """
    event, role = occurrence.event, occurrence.role
    if role.kind in _WORDLESS:
        return (event.attempt, role.kind, role.kind is LogClass.OOM and event.facts.reason)
    if role.kind is LogClass.SIGNAL:
        return (event.attempt, role.kind, event.facts.signal)
    if event.kind is EventKind.CUDA_ERROR:
        return (event.attempt, event.kind, event.facts.reason)
    if role.kind in (LogClass.STARTUP, LogClass.HARDWARE):
        return (event.attempt, role.kind, event.facts.reason)
    return (event.attempt, role.kind, role.tier, event.source or event.message[:40])


def _failure_of(group: Sequence[Occurrence]) -> Hypothesis:
    """Return a `Hypothesis` that combines events which report the same failure."""
    ordered = sorted(group, key=lambda occurrence: occurrence.order)
    events = [occurrence.event for occurrence in ordered]
    ranks = sorted({e.rank for e in events if e.rank is not None})
    return Hypothesis(ordered[0].role, events, ranks, ordered[0].order)


def _without_explained(found: list[Occurrence]) -> list[Occurrence]:
    """Return the failure events in `found` except for exit codes that add nothing.

    An exit code is left out in two cases: another event of its rank explains the failure of the rank, or another
    failure event has no rank, so that it may be about this rank.
    """
    said_why = {o.event.rank for o in found if o.role.kind is not LogClass.EXIT_CODE}
    return [o for o in found if o.role.kind is not LogClass.EXIT_CODE or not (said_why & {o.event.rank, None})]


def _without_forced(found: list[Occurrence], logs: Logs) -> list[Occurrence]:
    """Return the failure events in `found` without ranks that the launcher killed by SIGKILL.

    The launcher kills a rank that does not stop on request, so this signal is not a failure of the rank.
    """
    forced = {e.rank for e in logs.events if e.facts.reason is Reason.FORCED and e.rank is not None}
    return [o for o in found if not (o.role.tier is Tier.KILLED and o.event.rank in forced)]


def _without_stopped(found: list[Occurrence]) -> list[Occurrence]:
    """Return the failure events in `found` without those that follow from an order to stop the job.

    For example, workers ended by SIGTERM after the scheduler cancelled the job are left out; the order itself stays.
    """
    stop = min((o for o in found if _is_stop(o)), key=lambda o: (o.clock, o.file, o.event.line), default=None)
    if stop is None:
        return found
    return [o for o in found if _is_stop(o) or not follows(o, stop)]


def _is_stop(occurrence: Occurrence) -> bool:
    """Return whether an event shows that the scheduler, or a signal to the launcher, ended the job from outside.

    A job that Slurm reports as cancelled does not count, because Slurm also cancels a job in which a task failed.
    """
    event = occurrence.event
    return event.kind is EventKind.STOP_REQUESTED and event.facts.reason not in (Reason.CANCELLED, Reason.CLOSED)


def follows(occurrence: Occurrence, stop: Occurrence) -> bool:
    """Return whether a failure came after an order to stop the job (`stop`) and may be a consequence of the order."""
    if occurrence.file == stop.file:
        is_later = occurrence.event.line > stop.event.line
    else:
        # Logs without times cannot be compared, and most failures on other nodes follow an order to stop.
        is_later = occurrence.clock == 0 or occurrence.clock >= stop.clock
    is_worker = occurrence.event.kind is EventKind.DATALOADER_WORKER
    return is_later and (is_worker or occurrence.role.tier in _ENDED_BY_SIGTERM)
