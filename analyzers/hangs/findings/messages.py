"""Know the hangs in sends and receives between two ranks that do not match."""

from analyzers.hangs.classify.cause import Cause
from analyzers.hangs.findings.entry import HangFailure
from analyzers.hangs.findings.operations import both_sides, differing_lines, for_devices
from analyzers.hangs.findings.wording import at_step, in_function, list_waiting, message_halves, name_operation
from analyzers.hangs.model import HangClass, Reason
from analyzers.words import agree, rank_names

_NEEDS_OTHER_HALF = "a send completes only with its recv, and one of the two was not issued"
_IN_SAME_ORDER = "give each send a recv on its peer, and issue both in the same order on both ranks"


def _different_halves(cause: Cause) -> str:
    return (
        f"{rank_names(cause.ranks)} issued a send and a recv that do not match{at_step(cause)}: {message_halves(cause)}"
    )


def _same_shape(cause: Cause) -> str:
    lines = differing_lines(cause)
    where = f" at {lines[0]}" if len(lines) == 1 else ""
    return f"pass tensors of the same shape and type to the send and the recv{where}"


def _both_lack(cause: Cause) -> str:
    where = f"{at_step(cause)}: {list_waiting(cause.sides)}, and no rank has issued the other halves"
    return f"{rank_names(cause.ranks)} wait for each other in sends and receives{where}"


def _other_launch(cause: Cause) -> str:
    its = agree(cause.ranks, "its", "their")
    name = name_operation(cause.culprit)
    return f"{rank_names(cause.ranks)} issued {name}{at_step(cause)} in a different batch than {its} peers expect"


def _deviation(cause: Cause) -> str:
    name, they = name_operation(cause.culprit), agree(cause.ranks, "it", "they")
    return f"{rank_names(cause.ranks)} skipped {name}{at_step(cause)}: {they} issued {both_sides(cause)}"


def _wrong_message(cause: Cause) -> str:
    """Return the title on a send or recv that a rank should not have issued."""
    name = cause.issued.operation if cause.issued else "a message"
    wrong = f"{name} instead of {cause.expected.operation}" if cause.expected else f"{name} once too often"
    if cause.reason is Reason.NEVER_EXCHANGED:
        wrong = f"{name}, whose other half its peer has never issued,"
    return f"{rank_names(cause.ranks)} issued {wrong}{at_step(cause)}{in_function(cause)}"


ENTRIES = (
    HangFailure(
        id="hang.different_halves",
        kind=HangClass.MISMATCH,
        reasons=(Reason.DIFFERENT_HALVES,),
        what="A send and its recv have different shapes or types.",
        title=_different_halves,
        why="a send and its recv must have the same shape and type",
        next=_same_shape,
        shown_by=message_halves,
        in_title=True,
    ),
    HangFailure(
        id="hang.different_tags",
        kind=HangClass.UNMATCHED_P2P,
        reasons=(Reason.DIFFERENT_TAGS,),
        what="A send and its recv have different tags.",
        title=lambda cause: (
            f"{rank_names(cause.ranks)} wait for each other under different tags{at_step(cause)}:"
            f" {message_halves(cause)}"
        ),
        why="a recv only takes a message with its own tag",
        next=lambda cause: f"pass the same tag at {' and '.join(differing_lines(cause))}, or no tag",
        shown_by=message_halves,
        in_title=True,
        keeps_next=True,
    ),
    HangFailure(
        id="hang.both_wait",
        kind=HangClass.UNMATCHED_P2P,
        reasons=(Reason.BOTH_LACK_OTHER_HALF,),
        what="Two ranks wait for each other in sends and receives whose other halves neither has issued.",
        title=_both_lack,
        why=_NEEDS_OTHER_HALF,
        next=_IN_SAME_ORDER,
        shown_by="each waits for a send or recv that its peer has not issued",
        in_title=True,
    ),
    HangFailure(
        id="hang.wrong_message",
        kind=HangClass.UNMATCHED_P2P,
        reasons=(Reason.OTHER_PEER, Reason.ONE_TOO_MANY, Reason.NEVER_EXCHANGED),
        what="A rank issued a send or recv that its peer does not have: to a wrong rank, or once too often.",
        title=_wrong_message,
        why=_NEEDS_OTHER_HALF,
        next=_IN_SAME_ORDER,
        shown_by={
            Reason.OTHER_PEER: "one peer waits for the message that it never issued, and another one never issued the"
            " other half of the message that it did issue",
            Reason.ONE_TOO_MANY: "its peer and all other pairs issued one message less",
            Reason.NEVER_EXCHANGED: "it is the first such message between the two, after many others, and the peer has"
            " gone on to a collective",
        },
    ),
    HangFailure(
        id="hang.other_launch",
        kind=HangClass.UNMATCHED_P2P,
        reasons=(Reason.OTHER_LAUNCH,),
        what="A send or recv is in another batch than its peer expects.",
        title=_other_launch,
        why=_NEEDS_OTHER_HALF,
        next=_IN_SAME_ORDER,
        shown_by="its message is in a different batch than its peers expect",
        in_title=True,
    ),
    HangFailure(
        id="hang.skipped_message",
        kind=HangClass.UNMATCHED_P2P,
        reasons=(Reason.DEVIATION, Reason.NEVER_ISSUED_OTHER_HALF),
        what="A rank left out the other half of a send or recv for which its peer waits.",
        title=lambda cause: (
            _deviation(cause)
            if cause.reason is Reason.DEVIATION
            else f"{rank_names(cause.ranks)} never issued the other half of {name_operation(cause.culprit)}"
            f"{at_step(cause)}{in_function(cause)}"
        ),
        why=_NEEDS_OTHER_HALF,
        next=_IN_SAME_ORDER,
        shown_by={
            Reason.DEVIATION: lambda cause: f"it issued {both_sides(cause)}",
            Reason.NEVER_ISSUED_OTHER_HALF: "it never issued the matching send or recv",
        },
        in_title=True,
    ),
    HangFailure(
        id="hang.unmatched_message",
        kind=HangClass.UNMATCHED_P2P,
        what="A rank waits in a send or recv whose other half was never issued.",
        title="{ranks} {wait} in a send or recv{step}{place} whose other half was never issued",
        why=_NEEDS_OTHER_HALF,
        next=_IN_SAME_ORDER,
        shown_by={Reason.PARTNER_NEVER_ISSUED: "its peer never issued the matching send or recv"},
        in_title=True,
    ),
    HangFailure(
        id="hang.message_not_delivered",
        kind=HangClass.ALL_ARRIVED,
        reasons=(Reason.BOTH_HALVES_ISSUED,),
        what="Both halves of a message were issued, and it does not complete.",
        title="{ranks} {have} issued both halves (send and recv) of the message {operation}{step}, and it does not"
        " complete",
        why="both ranks have issued {operation}, so no line of the program is to blame: the network or a device is"
        " stuck",
        next=for_devices,
        shown_by="both the send and the recv were issued",
        in_title=True,
    ),
)
