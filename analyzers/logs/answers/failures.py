"""Group events into the failures of a job. A failure has the same class and source line on all its ranks.

The failures are sorted by how probable each is as the cause of the job's end. Three kinds of events are dropped before:
those that are no failure, those that the program survived, and those that only follow from an order to stop.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from analyzers.logs.answers.roles import Role, Tier, role_of
from analyzers.logs.answers.survived import Occurrence, without_completed, without_handled, without_recovered
from analyzers.logs.loading import Logs
from analyzers.logs.model import EventKind, LogClass, LogEvent, Reason

_WORDLESS = (LogClass.OOM, LogClass.HOST_OOM, LogClass.DATALOADER_WORKER, LogClass.COLLECTIVE_TIMEOUT,
            LogClass.MISMATCH, LogClass.UNUSED_PARAMETERS, LogClass.EXIT_CODE, LogClass.NONFINITE_LOSS)  # fmt: skip
"""The classes of failures whose events count as one failure even if their source lines and messages differ."""
_ENDED_BY_SIGTERM = (Tier.KILLED, Tier.EXIT_CODE, Tier.LOST_CONNECTION, Tier.ABORTED, Tier.VAGUE, Tier.NATIVE_CRASH,
                    Tier.TIMEOUT, Tier.STUCK_WATCHDOG, Tier.NETWORK)  # fmt: skip
"""The tiers (`Tier`) of failures that ranks report if the launcher or the scheduler stops them."""


@dataclass(frozen=True)
class Failure:
    """The same failure on one or several ranks; `events` are the log events that report it.

    The events are sorted by tier (a low tier is more probably a cause), then by time; `ranks` are the ranks of the
    events. `role` has the class that a verdict gets from this failure. `order` is a sort key: the lowest key is the
    most probable cause.
    """

    role: Role
    events: list[LogEvent]
    ranks: list[int]
    order: tuple[int, int, int, int, int]

    @property
    def lead(self) -> LogEvent:
        """The most informative event of the failure.

        This is the first event with a line of the user's code, or else the first one that is not from torchrun's table
        of failures.
        """
        described = [
            e for e in self.events if e.kind not in (EventKind.TORCHRUN_FAILURE, EventKind.TORCHRUN_ROOT_CAUSE)
        ]
        return next((e for e in self.events if e.source), (described or self.events)[0])


def find_failures(logs: Logs) -> list[Failure]:
    """Return the failures of a job, the most probable cause first."""
    found = [
        Occurrence(event, role, clock, file)
        for event, clock, file in zip(logs.events, logs.clocks, logs.files_of, strict=True)
        if (role := role_of(event))
    ]
    # Recovery is judged by what is left: an error that was handled does not mean that the last start failed.
    found = without_recovered(without_handled(without_completed(found, logs), logs), logs)
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


def _failure_of(group: Sequence[Occurrence]) -> Failure:
    """Return a `Failure` that combines events which report the same failure."""
    ordered = sorted(group, key=lambda occurrence: occurrence.order)
    events = [occurrence.event for occurrence in ordered]
    ranks = sorted({e.rank for e in events if e.rank is not None})
    return Failure(ordered[0].role, events, ranks, ordered[0].order)


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
