"""One device of one snapshot -> every answer about it."""

from collections.abc import Iterator

from analyzers.memory.answers.fragmentation import fragmentation
from analyzers.memory.answers.leaks import growing
from analyzers.memory.answers.oom import last_oom
from analyzers.memory.answers.savings import estimates
from analyzers.memory.answers.stacks import top_stacks
from analyzers.memory.answers.step_use import step_uses
from analyzers.memory.answers.unusual_use import notable
from analyzers.memory.categories.categorise import Guess
from analyzers.memory.model import Device
from analyzers.memory.replay.arenas import Placed, pools, streams
from analyzers.memory.replay.lifetimes import Replay
from analyzers.memory.replay.reserved import reserved, retries


def describe(replay: Replay, guess: Guess, placed: Placed) -> Device:
    """All answers about one device but those that the file's place gives: path, rank, step."""
    trace = replay.trace
    rising = growing(replay, guess)
    uses = step_uses(replay, guess)
    oom = last_oom(replay, guess, rising, uses)
    peak, index = replay.peak
    alive = replay.lifetimes.alive(index)
    snapshot = trace.snapshot
    return Device(
        path="",
        rank=None,
        device=trace.number,
        step=None,
        entries=len(trace),
        start_allocated_bytes=replay.start,
        peak_allocated_bytes=peak,
        peak_index=index,
        end_allocated_bytes=replay.end,
        reserved_bytes=trace.reserved_bytes,
        peak_reserved_bytes=int(reserved(trace).max(initial=trace.reserved_bytes)),
        limit_bytes=snapshot.limit_bytes,
        pools=pools(placed),
        streams=streams(placed),
        retries=[] if snapshot.made_up_segments else retries(trace),
        consistent=replay.consistent,
        lacking=list(lacking(replay, guess)),
        oom=oom,
        categories=guess.sums(replay.lifetimes, alive),
        categories_exact=guess.exact,
        categories_confidence=guess.certainty(replay.lifetimes, alive),
        categories_bases=guess.bases(replay.lifetimes, alive),
        fragmentation=fragmentation(placed, oom),
        top_stacks=top_stacks(snapshot, replay.lifetimes, guess, alive),
        end_stacks=top_stacks(snapshot, replay.lifetimes, guess, replay.lifetimes.alive(len(trace) - 1)),
        steps=uses,
        growing=rising,
        notable=notable(replay, guess),
        estimates=estimates(replay, guess, oom.index if oom else index),
    )


def lacking(replay: Replay, guess: Guess) -> Iterator[str]:
    """What the file does not tell about this device."""
    trace, meta = replay.trace, replay.trace.snapshot.columns.meta
    if not len(trace):
        yield "a history of allocations (the numbers are the state at the snapshot)"
        return
    if not trace.entry("stack").any():
        yield "stacks (no entry has frames)"
    if not trace.entry("time").any():
        yield "times (no entry has one)"
    if not len(trace.segments):
        yield "segments (what is older than the trace and stayed cannot be seen)"
    if trace.number < len(meta["overflowed"]) and meta["overflowed"][trace.number]:
        yield "the oldest entries (their ring overflowed: raise max_entries)"
    elif replay.start and not guess.exact:
        yield "where what is older than the first entry was allocated"
    if not replay.consistent:
        yield "some entries (the replay does not end at the blocks of the snapshot)"
