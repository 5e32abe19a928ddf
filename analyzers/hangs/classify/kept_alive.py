"""Find ranks whose program has ended while their process goes on, because a non-daemon thread still runs.

At exit, Python waits for such threads in `threading._shutdown`. The other ranks may have ended already; then no rank
waits in an operation, only the launcher waits.
"""

from collections.abc import Sequence

from analyzers.hangs.classify.cause import Cause, HangContext
from analyzers.hangs.model import Culprit, Frame, HangClass, Reason, user_frame
from analyzers.hangs.reading.stacks.thread_stacks import read_threads

CONFIDENCE = 0.8


def find_kept_alive(context: HangContext) -> list[Cause]:
    """Return a `Cause` for each rank whose stacks show that its program has ended and a thread keeps it alive."""
    side = context.side
    running = [r for r in side.stack_files if side.end(r) is None and not side.ended_cleanly(r)]
    found = ((rank, read_threads(side.stack_files[rank], rank)) for rank in sorted(running))
    return [_blame_thread(rank, threads) for rank, threads in found if any(map(_is_at_end, threads))]


def _is_at_end(stack: Sequence[Frame]) -> bool:
    """Return whether a thread with this stack is waiting at Python's exit for the other threads to end."""
    return any(f.name == "_shutdown" and f.filename.endswith("threading.py") for f in stack)


def _blame_thread(rank: int, threads: Sequence[list[Frame]]) -> Cause:
    """Return a `Cause` for a rank that is kept alive by a thread; `threads` are the stacks of all its threads.

    The cause has the stack of the first thread that still runs and has a frame to name.
    """
    others = (stack for stack in threads if not _is_at_end(stack))
    frames = next((stack for stack in others if user_frame(stack)), [])
    culprit = Culprit(ranks=[rank], kind=HangClass.HOST_STUCK, frames=frames, confidence=CONFIDENCE)
    return Cause(culprit, Reason.KEPT_ALIVE)
