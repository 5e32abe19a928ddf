"""Divide the memory of a whole device into parts, if the file records how many bytes of the device were in use."""

from collections.abc import Mapping

from analyzers.device_memory import KnownMemory, MemoryPart, account_for
from analyzers.memory.categories.categorise import Guess
from analyzers.memory.reading.schema import BlockState
from analyzers.memory.replay.lifetimes import Replay


def device_account(replay: Replay, guess: Guess) -> list[MemoryPart]:
    """Return the parts of a device's memory when the snapshot was taken; empty if its total or its use is unknown."""
    trace, snapshot = replay.trace, replay.trace.snapshot
    total, used = snapshot.limit_bytes, snapshot.recorded_number("device_used_bytes")
    if not total or not used or snapshot.made_up_segments or used > total or len(snapshot.devices) > 1:
        return []
    at_end = replay.lifetimes.alive(len(trace) - 1)
    categories: Mapping[str, int] = guess.sums(replay.lifetimes, at_end)
    allocated = int(trace.block("size")[trace.block("state") != BlockState.INACTIVE].sum())
    process = snapshot.recorded_number("device_process_bytes")
    # What the driver counts for this process must hold at least what the allocator has from it.
    known = process is not None and trace.reserved_bytes <= process <= used
    return account_for(
        KnownMemory(
            total=total,
            free=total - used,
            allocated=allocated,
            cached=trace.reserved_bytes - allocated,
            process=process if known else None,
            workspaces=categories["workspace"],
            communication=categories["communication"],
        )
    )
