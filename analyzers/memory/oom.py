"""The allocation that failed, and how much of the reserved memory could not be used for it."""

import numpy as np

from analyzers.memory.categories import Guess
from analyzers.memory.model import DeviceTrace, Fragmentation, Oom
from analyzers.memory.phases import step_at
from analyzers.memory.replay import Replay
from analyzers.memory.reserved import reserved
from analyzers.memory.stacks import shown


def last_oom(replay: Replay, guess: Guess) -> Oom | None:
    """The last allocation that failed; earlier ones the program survived."""
    trace = replay.trace
    failed = trace.where("oom")
    if not len(failed):
        return None
    index = int(failed[-1])
    lives = replay.lifetimes
    return Oom(
        requested_bytes=int(trace.entry("size")[index]),
        device_free_bytes=int(trace.entry("addr")[index]),
        allocated_bytes=int(replay.live[index]),
        reserved_bytes=int(reserved(trace)[index]),
        index=index,
        step=step_at(trace, index),
        frames=shown(trace.snapshot, int(trace.entry("stack")[index])),
        categories=guess.sums(lives, lives.alive(index)),
    )


def fragmentation(trace: DeviceTrace, oom: Oom | None) -> Fragmentation:
    """How the segments are used at the end of the trace."""
    size, active = trace.block("size"), trace.block("state") > 0
    segment = trace.block("segment")
    split = ~active & np.isin(segment, segment[active])
    return Fragmentation(
        reserved_bytes=trace.reserved_bytes,
        allocated_bytes=int(size[active].sum()),
        rounding_bytes=int((size - trace.block("requested"))[active].sum()),
        inactive_split_bytes=int(size[split].sum()),
        largest_free_block_bytes=int(size[~active].max(initial=0)),
        request_bytes=oom.requested_bytes if oom else None,
        made_up_segments=trace.snapshot.made_up_segments,
    )
