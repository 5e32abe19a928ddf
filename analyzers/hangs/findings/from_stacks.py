"""Write the sentences about a hang for which only stacks are available."""

from collections.abc import Sequence

from analyzers.hangs.classify.cause import Process
from analyzers.hangs.classify.from_stacks import Activity, Place, StackCause
from analyzers.hangs.findings.own_code import for_stuck_code
from analyzers.hangs.findings.wording import format_function, format_line
from analyzers.hangs.model import Culprit, HangClass
from analyzers.report import Evidence, Finding, Severity, Status, Verdict
from analyzers.words import agree, rank_names

_MOST_SIDES = 4
_CONFIDENCES = {
    HangClass.HOST_STUCK: 0.75,
    HangClass.MISMATCH: 0.7,
    HangClass.UNMATCHED_P2P: 0.5,
    HangClass.ALL_ARRIVED: 0.5,
    HangClass.HEALTHY: 0.6,
    HangClass.UNKNOWN: 0.3,
}
OPERATIONS = {"backward": "the backward pass", "its device": "a wait for its device"}
_BEGINNINGS = {
    HangClass.MISMATCH: "ranks wait in different operations: ",
    HangClass.UNMATCHED_P2P: "ranks wait in sends and receives that do not match: ",
    HangClass.ALL_ARRIVED: "all ranks wait at the same line: ",
}
"""{class of a hang: the beginning of a title that then says where all ranks are}."""
_WHY = {
    HangClass.HOST_STUCK: "the other ranks wait in operations that need {them}",
    HangClass.MISMATCH: "all ranks wait, but not in the same operation: a branch that only some of them took, or a loop"
    " that ended earlier there",
    HangClass.UNMATCHED_P2P: "all ranks wait, some of them in a send or recv whose other half no rank issues",
    HangClass.ALL_ARRIVED: "every rank is in the same operation at the same line, so the network or a device is"
    " stuck, or one rank passed a different shape, which stacks do not show",
}
_UNMOVED = ". No rank moved between the samples of its stack"
_ONE_SAMPLE = ". Only one stack was taken of each rank, which cannot show whether the rank is stuck or slow"
_ONE_SAMPLE_FACTOR = 0.7
_NO_FLIGHT_RECORDER = (
    "Flight Recorder, which would number the collectives: start the job with `workbench launch -- ...`"
)
_OTHER_MACHINES = "the ranks of the other machines: run the same command there"


def verdict_from_stacks(cause: StackCause, world_size: int) -> Verdict:
    """Return the verdict on a hang for which only stacks are available; it mentions if some ranks have no stack.

    `world_size` is the number of ranks of the job.
    """
    seen = sum(map(len, cause.places))
    statuses = {HangClass.HEALTHY: Status.OK, HangClass.UNKNOWN: Status.UNKNOWN}
    return Verdict(
        status=statuses.get(cause.kind, Status.ERROR),
        kind=cause.kind,
        ranks=cause.ranks,
        sentence=sentence(cause),
        confidence=confidence(cause),
        missing=[_NO_FLIGHT_RECORDER, *([_OTHER_MACHINES] if seen < world_size else [])],
    )


def _is_one_sample(cause: StackCause) -> bool:
    return all(place.moved is None for side in cause.places for place in side)


def confidence(cause: StackCause) -> float:
    return round(_CONFIDENCES[cause.kind] * (_ONE_SAMPLE_FACTOR if _is_one_sample(cause) else 1.0), 2)


def why(cause: StackCause) -> str:
    """Return how the culprits stop the other ranks, as far as stacks show it."""
    return _WHY[cause.kind].format(them=agree(cause.ranks, "it", "them")) + (
        _ONE_SAMPLE if _is_one_sample(cause) else _UNMOVED
    )


def sentence(cause: StackCause) -> str:
    if cause.kind is HangClass.HEALTHY:
        return f"no rank hangs: ranks moved between the samples of their stacks; {sides(cause)}"
    return f"{title(cause)}{'; ' + waiting(cause) if cause.kind is HangClass.HOST_STUCK else ''}"


def title(cause: StackCause) -> str:
    """Return the title of the finding: `rank 1 is stuck in load (train.py:13) and in no collective`.

    If no rank runs its own code, the title is the result of `sides`: the operation and line of all ranks.
    """
    if cause.kind is not HangClass.HOST_STUCK:
        return _BEGINNINGS.get(cause.kind, "") + sides(cause)
    working = [side for side in cause.places if not side[0].waits]
    return ", ".join(f"{_is_at(side, 'is stuck in', 'are stuck in')} and in no collective" for side in working)


def waiting(cause: StackCause) -> str:
    """Return a phrase on where the victims wait, such as `ranks 0, 2-3 wait in the backward pass (train.py:34)`."""
    groups = [side for side in cause.places if side[0].waits]
    return ", ".join(_is_at(side, "waits in", "wait in") for side in groups[:_MOST_SIDES])


def sides(cause: StackCause) -> str:
    """Return where all ranks are: `rank 0 is in barrier (train.py:98), ranks 1-3 are in all_reduce (train.py:22)`."""
    # The smaller side first: it is the one that differs.
    return ", ".join(_is_at(side, "is in", "are in") for side in reversed(cause.places[:_MOST_SIDES]))


def _is_at(side: list[Place], singular: str, plural: str) -> str:
    """Return the ranks of `side` with a verb and their location, such as `ranks 1-3 wait in backward (train.py:22)`.

    All items of `side` have the same operation and line. `singular` and `plural` are forms of the verb (`waits`,
    `wait`).
    """
    ranks = sorted(place.rank for place in side)
    return f"{rank_names(ranks)} {agree(ranks, singular, plural)} {_place_name(side[0])}"


def _place_name(place: Place) -> str:
    """Return the operation and line of a rank, or its function and line if it runs its own code."""
    if place.activity is Activity.OWN_CODE:
        return format_function(list(place.frames)) or "code of libraries"
    line = format_line(place.line)
    return OPERATIONS.get(place.operation, place.operation) + (f" ({line})" if line else "")


def culprits_from_stacks(cause: StackCause) -> list[Culprit]:
    """Return the culprit of a cause in a list, for the JSON document; the list is empty if there is no culprit."""
    if not cause.ranks:
        return []
    first = next(place for side in cause.places for place in side if place.rank in cause.ranks)
    return [
        Culprit(
            ranks=cause.ranks,
            kind=cause.kind,
            operation=first.operation or None,
            frames=list(first.frames),
            victims=cause.victims,
            title=title(cause),
            detail=why(cause),
            confidence=confidence(cause),
        )
    ]


def findings_from_stacks(cause: StackCause) -> list[Finding]:
    """Return, in a list, the finding on the culprits; its evidence names the line of each group of ranks."""
    return [
        Finding(
            id=f"hang.{culprit.kind}",
            severity=Severity.ERROR,
            title=culprit.title,
            why=culprit.detail,
            next=next_step(cause),
            ranks=culprit.ranks,
            evidence=[evidence(side) for side in cause.places[:_MOST_SIDES]],
            confidence=culprit.confidence,
        )
        for culprit in culprits_from_stacks(cause)
    ]


def evidence(side: list[Place]) -> Evidence:
    """Return evidence that names the line that some ranks are at.

    All items of `side` have the same operation and line.
    """
    line = side[0].line
    return Evidence(text=_is_at(side, "is in", "are in"), line=f"{line.filename}:{line.line}" if line else "")


def next_step(cause: StackCause) -> str:
    """Return the next thing to try, as an imperative sentence without a full stop."""
    lines = [format_line(side[0].line) for side in cause.places if side[0].line]
    if cause.kind is HangClass.HOST_STUCK:
        return _for_stuck_ranks([side for side in cause.places if not side[0].waits])
    if cause.kind is HangClass.MISMATCH and len(lines) > 1:
        return f"compare {lines[-1]} with {lines[0]}, and make every rank take the same branch"
    if cause.kind is HangClass.UNMATCHED_P2P:
        return "give each send a recv on its peer, and issue both in the same order on both ranks"
    return "check the network and the devices of these ranks, and print the shape that each rank passes at this line"


def _for_stuck_ranks(sides: Sequence[list[Place]]) -> str:
    """Return what to look at if ranks run their own code; each item of `sides` has the ranks that are at one line."""
    first, *others = sides
    text = for_stuck_code(list(first[0].frames), Process(first[0].pid), len(first))
    lines = [format_line(side[0].line) for side in others if side[0].line]
    return f"{text}. Then look at {', '.join(lines[:_MOST_SIDES])}" if lines else text
