"""Define what may explain the end of a job: a hypothesis with its events, the ranks to blame, and the answer."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple

from analyzers.case.context import Context
from analyzers.case.facts import EventKind, LogClass, LogEvent, RankLog, Reason
from analyzers.case.rows import Row


class Tier(IntEnum):
    """A rating of events: the failure with the lowest tier is taken for the cause of the job's end.

    Low tiers are failures of a rank itself; high tiers are often consequences, such as a lost connection.
    """

    HARDWARE = 10
    OWN_FAILURE = 20
    NATIVE_CRASH = 22
    SOFT_HARDWARE = 24
    STOPPED = 28
    KILLED = 30
    BROKEN_NUMBERS = 32
    NAMED_BY_OTHERS = 35
    NETWORK = 36
    UNREACHED = 38
    TIMEOUT = 40
    STUCK_WATCHDOG = 45
    EXIT_CODE = 55
    VAGUE = 58
    LOST_CONNECTION = 60
    ABORTED = 62
    WARNED = 64
    """The program only warned of it, and went on."""


class Role(NamedTuple):
    """The meaning of an event as a possible cause of the job's end.

    `kind` is the class that the verdict gets; of several events, the one with the lowest `tier` is the cause.
    """

    kind: LogClass
    tier: Tier


@dataclass(frozen=True)
class Hypothesis:
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


class Basis(StrEnum):
    """The evidence that separates the ranks to blame from the ranks that waited for them."""

    NAMED = "named"
    """A message of a monitored barrier or a desync report names the ranks to blame."""
    BEHIND = "behind"
    """The ranks to blame enqueued fewer operations than the others."""
    OTHER_OPERATION = "other_operation"
    OTHER_LINE = "other_line"
    """The ranks to blame timed out in a collective at a different line than most ranks."""
    MESSAGES = "messages"
    """Ranks timed out in a send or recv whose counterpart was not issued."""
    STACKS = "stacks"
    """The stacks of the ranks to blame are outside of the collective in which the others wait."""
    CAUGHT = "caught"
    """The ranks to blame ended earlier than the others, and only they had caught an error before and continued."""
    SILENT = "silent"
    """The ranks to blame printed no timeout, while all others did."""
    NOT_LISTED = "not_listed"
    """torchrun's table of failures lists all ranks but those to blame, so these ended with exit code 0."""
    LEFT_ALONE = "left_alone"
    """The ranks to blame waited, and torchrun's table lists no other rank: all others had ended with exit code 0."""
    THREADS = "threads"
    """A thread other than the main thread timed out in a collective.

    The order of collectives may then differ between ranks.
    """
    ALONE = "alone"
    """One rank waits after the training has ended, so only this rank runs code with a collective."""
    EXTRA_OPERATION = "extra_operation"
    """One rank issued an operation that no other rank joined: all others finished the operation before and stopped."""
    FIRST_OPERATION = "first_operation"
    ALL_WAIT = "all_wait"
    MOST_SILENT = "most_silent"
    """Most ranks printed no timeout: they were missing, or were ended before they timed out elsewhere."""
    LATE = "late"
    """One rank timed out, and all others then lost their connection to it.

    No rank is blamed: the others came too late or waited as well, and logs cannot tell which.
    """
    ONE_SIDE = "one_side"
    """Only the logs of some ranks are available."""


@dataclass(frozen=True)
class Blame:
    """The ranks for which the others waited, and the evidence (`basis`) for this.

    `ranks` are the ranks to blame, empty if they cannot be named; `waiting` are the ranks that timed out. `reason` is
    set if the ranks to blame were in a different operation, or in sends and receives that do not match.
    """

    ranks: list[int]
    basis: Basis
    waiting: list[int] = field(default_factory=list)
    reason: Reason | None = None


class DifferingCount(NamedTuple):
    """A rank that printed `text`, while all other ranks printed the same line with another count, such as `others`."""

    rank: int
    text: str
    others: str


class Certainty(StrEnum):
    """The certainty of a `Case`, judged by the logs.

    `SHOWN`: a line of the log shows the cause. `SUSPECTED`: there is only weak evidence.
    """

    SHOWN = "shown"
    PROBABLE = "probable"
    SUSPECTED = "suspected"


@dataclass(frozen=True)
class Case:
    """The reason why a job ended: a failure, its class (`kind`), and the ranks to blame for it.

    `ranks` is empty if no rank is to blame, or if nothing shows which rank is. `blame` is set if ranks waited for
    others: it names the ranks that they waited for, and the evidence.
    """

    kind: LogClass
    ranks: list[int]
    failure: Hypothesis
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
    events: Sequence[LogEvent] = ()
    """All events of the logs, in their order."""
    logs: Mapping[int, RankLog] = field(default_factory=dict)
    """{rank: what it printed last}."""
    world_size: int | None = None
    context: Context = field(default_factory=Context)
    """What the text around the failure says about the job."""
    rows: Sequence[Row] = ()
    """The rows of numbers that the job printed, at most the first and the last ones."""
    quote: str = ""
    """The line of the failure's text that shows what it is; empty for the first line."""
    given: Mapping[str, str] = field(default_factory=dict)
    """{name: what the text of the failure gives for it}, by the named groups of the sign that matched."""

    @property
    def lead(self) -> LogEvent:
        """The event in the logs that shows the cause best."""
        return self.failure.lead

    @property
    def reason(self) -> Reason | None:
        """The specific reason of the cause, for classes that have several; None if no event has one."""
        reasons = (event.facts.reason for event in self.failure.events)
        return next((reason for reason in reasons if reason), None)

    def printed(self, expression: str) -> bool:
        """Return whether the lines around the failure, or one of the clues in the log, match an expression."""
        own = (text for event in self.failure.events for text in (event.excerpt, event.message, event.details))
        clues = (event.message for event in self.events if event.kind is EventKind.CLUE)
        return any(re.search(expression, text) for text in (*own, *clues))

    def called(self, expression: str) -> bool:
        """Return whether a frame of the failure's exception, as `file:line:function`, matches an expression."""
        return any(re.search(expression, call) for event in self.failure.events for call in event.calls)


@dataclass(frozen=True)
class Answer:
    """The cause of a job's end, and all other failures; `case` is None if the logs show no failure.

    The cause explains those in `explained`; nothing shows that those in `independent` follow from it.
    """

    case: Case | None
    explained: list[Hypothesis] = field(default_factory=list)
    independent: list[Hypothesis] = field(default_factory=list)

    @property
    def others(self) -> list[Hypothesis]:
        """All failures but the cause."""
        return [*self.explained, *self.independent]
