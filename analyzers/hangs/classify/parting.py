"""Find the `if` or loop at which ranks parted that are in different collectives.

The recorders write down which blocks of the source surround the lines in the stacks. A block that only one of two ranks
is in is where they parted:

    for batch in loader:            rank 1 is here, in all_reduce
        loss.backward()
        if rank == 0:
            evaluate()              rank 0 is here, in barrier: it alone is in the `if`
"""

from collections.abc import Sequence

from analyzers.hangs.classify.blocks import Block, Parting
from analyzers.hangs.classify.cause import Cause
from analyzers.hangs.model import Frame, HangClass, Reason, is_library, user_frame
from analyzers.hangs.reading.side_files import SideFiles


def find_parting(side: SideFiles, cause: Cause) -> Parting | None:
    """Return the block at which the culprits of a cause parted from the other ranks; None if it is not known.

    The outermost block that only one side is in decides, because what is inside of it follows. A block of the culprits
    is preferred: it is the exception to what the others do.
    """
    mine, theirs = _sides(cause)
    if not mine or not theirs or cause.kind not in (HangClass.MISMATCH, HangClass.SKIPPED):
        return None
    own, others = (_blocks_of(side, ranks[0]) for ranks in (mine, theirs))
    if own is None or others is None:
        return None
    only_own = [block for block in own if block not in others]
    only_others = [block for block in others if block not in own]
    if only_own:
        return Parting(only_own[-1], mine, theirs)
    return Parting(only_others[-1], theirs, mine) if only_others else None


def _sides(cause: Cause) -> tuple[list[int], list[int]]:
    """Return (ranks of the culprits, ranks that issued what was expected), as far as the cause tells them apart."""
    if cause.reason is Reason.LEFT_ALONE:
        return [], []
    if cause.expected and cause.expected.ranks and cause.issued:
        return cause.issued.ranks, [rank for rank in cause.expected.ranks if rank not in cause.issued.ranks]
    others = [rank for side in cause.sides for rank in side.ranks if rank not in cause.ranks]
    return cause.ranks, others or cause.victims


def _blocks_of(side: SideFiles, rank: int) -> list[Block] | None:
    """Return the blocks that a rank is in, innermost first, along its stack.

    The result is None without a stack, or if the source around one of its lines was not recorded.
    """
    recorded = side.collection.blocks if side.collection else {}
    blocks: list[Block] = []
    frames = _stack_of(side, rank)
    for frame in frames:
        headers = recorded.get(frame.filename, {}).get(str(frame.line))
        if headers is None:
            return None
        blocks += [Block(frame.filename, line, header) for line, header in headers]
    return blocks if frames else None


def _stack_of(side: SideFiles, rank: int) -> Sequence[Frame]:
    """Return the user's frames of a rank: of its main thread, or of the error or signal that ended it."""
    fatal, error = side.last_words.signals.get(rank), side.exits.get(rank)
    stacks = (side.main_stack(rank), fatal.stack if fatal else [], error.traceback if error else [])
    frames = next((stack for stack in stacks if user_frame(stack)), [])
    return [frame for frame in frames if not is_library(frame)]
