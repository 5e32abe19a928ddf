"""One device of one snapshot -> every answer about it."""

from analyzers.memory.categories import Guess
from analyzers.memory.estimates import estimates
from analyzers.memory.leaks import growing
from analyzers.memory.model import Device
from analyzers.memory.oom import fragmentation, last_oom
from analyzers.memory.replay import Replay
from analyzers.memory.reserved import pools, reserved, retries
from analyzers.memory.stacks import top_stacks


def describe(replay: Replay, guess: Guess) -> Device:
    """All answers about one device but those that the file's place gives: path, rank, step."""
    trace = replay.trace
    oom = last_oom(replay, guess)
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
        pools=pools(replay),
        retries=[] if snapshot.made_up_segments else retries(trace),
        consistent=replay.consistent,
        oom=oom,
        categories=guess.sums(replay.lifetimes, alive),
        categories_exact=guess.exact,
        categories_confidence=guess.certainty(replay.lifetimes, alive),
        categories_bases=guess.bases(replay.lifetimes, alive),
        fragmentation=fragmentation(trace, oom),
        top_stacks=top_stacks(snapshot, replay.lifetimes, guess, alive),
        end_stacks=top_stacks(snapshot, replay.lifetimes, guess, replay.lifetimes.alive(len(trace) - 1)),
        growing=growing(replay, guess),
        estimates=estimates(replay, guess, oom.index if oom else index),
    )
