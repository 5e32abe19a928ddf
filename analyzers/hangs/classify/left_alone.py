"""Find ranks that issued a collective after most ranks had ended normally.

Such a rank issued one collective too many. For example, it alone saves a checkpoint after the training, and saving ends
in a barrier. In the opposite case a minority of ranks ends before the others: these ranks issued one collective too
few.
"""

from collections.abc import Sequence

from analyzers.hangs.classify.cause import Cause, HangContext
from analyzers.hangs.model import Culprit, HangClass, Reason
from analyzers.hangs.reading.exits import Ending, is_victim

CONFIDENCE = 0.7
"""The confidence of the verdict; it is below the default, because the ranks that ended may have left too early."""


def find_left_alone(context: HangContext, causes: Sequence[Cause]) -> list[Cause]:
    """Return, in a list, a `Cause` that blames a minority of ranks that issued a collective after the others had ended.

    The majority ended normally. The minority ended because it lost a connection or timed out. `causes` are the causes
    that other rules have found. The list is empty if one of `causes` blames a rank for anything but a normal end, or if
    most ranks of the job did not end normally.
    """
    if any(c.end is None or c.end.ending is not Ending.NO_ERROR for c in causes):
        return []
    # By the marks of clean ends alone: a rank may mark its end just after it closed its connections.
    alone = [rank for rank in range(context.job.world_size) if not context.side.ended_cleanly(rank)]
    errors = [context.side.exits.get(rank) for rank in alone]
    is_minority = 0 < len(alone) < context.job.world_size - len(alone)
    if not is_minority or not all(error and is_victim(error) for error in errors):
        return []
    frames = errors[0].traceback if errors[0] else []
    culprit = Culprit(ranks=alone, kind=HangClass.MISMATCH, frames=frames, confidence=CONFIDENCE)
    return [Cause(culprit, Reason.LEFT_ALONE)]
