"""Find the `if` or loop at which ranks parted that are in different collectives.

The recorders write down which blocks of the source surround the lines in the stacks. A block that only one of two ranks
is in is where they parted:

    for batch in loader:            rank 1 is here, in all_reduce
        loss.backward()
        if rank == 0:
            evaluate()              rank 0 is here, in barrier: it alone is in the `if`
"""

from collections.abc import Iterator, Sequence
from itertools import product

from analyzers.hangs.classify.blocks import Block, Parting
from analyzers.hangs.classify.cause import Cause
from analyzers.hangs.model import Frame, HangClass, Reason, is_library
from analyzers.hangs.reading.side_files import SideFiles


def find_parting(side: SideFiles, cause: Cause) -> Parting | None:
    """Return the block at which the culprits of a cause parted from the other ranks; None if it is not known.

    The outermost block that only one side is in decides, because what is inside of it follows. A block of the culprits
    is preferred: it is the exception to what the others do.
    """
    mine, theirs = _sides(cause)
    if not mine or not theirs or cause.kind not in (HangClass.MISMATCH, HangClass.SKIPPED):
        return None
    own, others = _find_blocks(side, mine[0], theirs[0])
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


def _find_blocks(side: SideFiles, mine: int, theirs: int) -> tuple[list[Block] | None, list[Block] | None]:
    """Return the blocks that each of two ranks is in, innermost first, along its stack.

    A traceback may begin further inside than the stack of a thread. So the outer functions that only one of the stacks
    has are left out. None stands for a rank whose stack, or the source around one of its lines, was not recorded.
    """
    for own, others in product(_stacks_of(side, mine), _stacks_of(side, theirs)):
        found = [_blocks_along(side, _inside(*pair)) for pair in ((own, others), (others, own))]
        if None not in found:
            return found[0], found[1]
    return None, None


def _inside(stack: list[Frame], other: list[Frame]) -> list[Frame]:
    """Return the user's frames of a stack up to the outermost function that another stack has, too."""
    shared = {(frame.filename, frame.name) for frame in other}
    own = [frame for frame in stack if not is_library(frame)]
    while own and (own[-1].filename, own[-1].name) not in shared:
        own.pop()
    return own


def _blocks_along(side: SideFiles, frames: Sequence[Frame]) -> list[Block] | None:
    """Return the blocks around the lines of a stack, innermost first; None if one of them was not recorded."""
    recorded = side.collection.blocks if side.collection else {}
    headers = [recorded.get(frame.filename, {}).get(str(frame.line)) for frame in frames]
    if not frames or None in headers:
        return None
    of_frames = zip(frames, headers, strict=True)
    return [Block(frame.filename, line, header) for frame, found in of_frames for line, header in found or ()]


def _stacks_of(side: SideFiles, rank: int) -> Iterator[list[Frame]]:
    """Yield the stacks that show where a rank is: of the signal or error that ended it, or of its main thread.

    A rank that has failed may have been asked for its stack while it reported its error; that stack shows nothing.
    """
    if fatal := side.last_words.signals.get(rank):
        yield fatal.stack
    if error := side.exits.get(rank):
        yield error.traceback
    else:
        yield side.main_stack(rank)
