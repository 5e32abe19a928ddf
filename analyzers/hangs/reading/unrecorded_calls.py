"""Add collective calls that Flight Recorder does not record on gloo: `monitored_barrier`, found in a rank's stack.

Without this call, such a rank has no pending operation and looks idle. The call becomes its first pending operation,
with the next sequence number of the rank's largest process group, which is nearly always the default group. The rank
then waits for the ranks that have not reached this number.
"""

import re

from analyzers.hangs.model import Frame, Job, Op, RankState, Signature
from analyzers.hangs.reading.side_files import SideFiles

_CALLS = {"monitored_barrier"}
_LIBRARY = re.compile(r"[/\\]torch[/\\]distributed[/\\]")
_INNERMOST_FRAMES = 4


def add_unrecorded_calls(job: Job, side: SideFiles) -> None:
    """Add the call found in a rank's stack as its pending operation, for each rank without a pending operation."""
    for rank, state in job.ranks.items():
        if state.current is None and (name := _call_in(stack := side.main_stack(rank))):
            job.stacks.append(stack)
            state.pending.append(operation(job, state, name))


def _call_in(frames: list[Frame]) -> str | None:
    """Return the collective in a stack that Flight Recorder does not record, such as `monitored_barrier`; else None."""
    innermost = frames[:_INNERMOST_FRAMES]
    return next((f.name for f in innermost if f.name in _CALLS and _LIBRARY.search(f.filename)), None)


def operation(job: Job, state: RankState, name: str) -> Op:
    """Return the call `name`, which Flight Recorder does not record, as a pending operation of the rank of `state`.

    The operation has the same form as a recorded one. Its stack is the last one in `job.stacks`.
    """
    # The call's group is not known; nearly all are in the default group, which is the largest one.
    mine = [i for i, group in enumerate(job.groups) if state.rank in group.ranks]
    group = max(mine, key=lambda i: len(job.groups[i].ranks))
    job.signatures.append(Signature("gloo", name, (), (), (), ()))
    return Op(
        rank=state.rank,
        group=group,
        seq=state.enqueued(group) + 1,
        p2p_seq=0,
        signature=len(job.signatures) - 1,
        stack=len(job.stacks) - 1,
        started=False,
        done=False,
        retired=False,
        created_ns=state.newest_ns,
        completed_ns=0,
        p2p=False,
    )
