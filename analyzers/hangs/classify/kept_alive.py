"""Find ranks whose program has ended while their process goes on, because a thread that is no daemon still runs.

Python waits for such threads at the end, in `threading._shutdown`. The other ranks may have ended already, so that
nobody waits in an operation; only the launcher waits.
"""

from collections.abc import Sequence

from analyzers.hangs.classify.cause import Cause
from analyzers.hangs.classify.context import HangContext
from analyzers.hangs.model import Culprit, Frame, HangClass, Reason, user_frame
from analyzers.hangs.reading.thread_stacks import read_threads

CONFIDENCE = 0.8


def find_kept_alive(context: HangContext) -> list[Cause]:
    """Return a `Cause` for each rank whose stacks show that its program has ended and a thread keeps it alive."""
    side = context.side
    running = [r for r in side.stack_files if side.end(r) is None and not side.ended_cleanly(r)]
    found = ((rank, read_threads(side.stack_files[rank], rank)) for rank in sorted(running))
    return [blame_thread(rank, threads) for rank, threads in found if any(map(is_at_end, threads))]


def is_at_end(stack: Sequence[Frame]) -> bool:
    """Return whether a thread waits for other threads at the end of the interpreter."""
    return any(f.name == "_shutdown" and f.filename.endswith("threading.py") for f in stack)


def blame_thread(rank: int, threads: Sequence[list[Frame]]) -> Cause:
    """Return a `Cause` for a rank that a thread keeps alive, with the stack of the first thread in the user's code."""
    others = (stack for stack in threads if not is_at_end(stack))
    frames = next((stack for stack in others if user_frame(stack)), [])
    culprit = Culprit(ranks=[rank], kind=HangClass.HOST_STUCK, frames=frames, confidence=CONFIDENCE)
    return Cause(culprit, Reason.KEPT_ALIVE)
