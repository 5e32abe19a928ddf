"""Find the ranks blamed by PyTorch's own error messages, for jobs whose dumps do not show which rank is missing."""

import re
from collections import Counter

from analyzers.hangs.classify.cause import Cause, HangContext
from analyzers.hangs.model import Culprit, Frame, HangClass, Reason
from analyzers.hangs.reading.side_formats import ExitFile

ABSENT = re.compile(r"Ranks? ([\d, ]+?) failed to pass monitoredBarrier")
PARAMETERS = re.compile(r"Rank (\d+) has (\d+) params, while rank (\d+) has inconsistent (\d+) params")
_NAMED_CONFIDENCE = 0.8


def find_absent_by_name(context: HangContext) -> list[Cause]:
    """Return, in a list, a `Cause` that blames the ranks named as missing in the error of a monitored barrier.

    The list is empty if no error names a rank.
    """
    exits = context.side.exits
    named = {int(rank) for end in exits.values() for match in ABSENT.finditer(end.message) for rank in _ranks_in(match)}
    ranks = sorted(named - exits.keys())
    return [blame(context, HangClass.HOST_STUCK, Reason.NAMED_ABSENT, ranks)] if ranks else []


def _ranks_in(match: re.Match[str]) -> list[str]:
    """Return the rank numbers in the first group of a match, as texts; the group is a list such as `1, 3`."""
    return re.findall(r"\d+", match[1])


def find_other_models(context: HangContext) -> list[Cause]:
    """Return, in a list, a `Cause` that blames ranks whose model has another number of parameters than on most ranks.

    The numbers are in the errors of DDP. Each error compares its rank with only one other rank, so all messages
    together are needed to show which rank is wrong. The list is empty if the errors name no different numbers.
    """
    counts: dict[int, int] = {}
    for end in context.side.exits.values():
        for match in PARAMETERS.finditer(end.message):
            counts |= {int(match[1]): int(match[2]), int(match[3]): int(match[4])}
    usual = Counter(counts.values()).most_common(2)
    if len(usual) < 2:
        return []
    is_tie = usual[0][1] == usual[1][1]
    ranks = sorted(rank for rank, count in counts.items() if is_tie or count != usual[0][0])
    return [blame(context, HangClass.MISMATCH, Reason.OTHER_MODEL, ranks)]


def blame(context: HangContext, kind: HangClass, reason: Reason, ranks: list[int]) -> Cause:
    """Return a `Cause` that blames `ranks`, which are named in error messages; all other ranks are their victims.

    `kind` is the class of the hang, and `reason` says which message it was. The stack of the cause is the traceback of
    the first of `ranks`, or else the stack of its main thread.
    """
    ends = context.side.exits
    culprit = Culprit(
        ranks=ranks,
        kind=kind,
        frames=frames_of(ends.get(ranks[0])) or context.side.main_stack(ranks[0]),
        victims=[rank for rank in range(context.job.world_size) if rank not in ranks],
        confidence=_NAMED_CONFIDENCE,
    )
    return Cause(culprit, reason)


def frames_of(end: ExitFile | None) -> list[Frame]:
    """Return the traceback of the exception that ended a rank, innermost frame first; empty if `end` is None."""
    return end.traceback if end else []
