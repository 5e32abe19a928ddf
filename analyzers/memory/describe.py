"""Divide the memory of a whole device into parts, if the file records how many bytes of the device were in use."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from analyzers.device_memory import KnownMemory, MemoryPart, account_for
from analyzers.memory.arenas import BlockArenas, pool_uses, stream_uses
from analyzers.memory.categorise import Guess
from analyzers.memory.fragmentation import fragmentation
from analyzers.memory.leaks import growing_stacks
from analyzers.memory.lifetimes import Replay, retries
from analyzers.memory.model import Device, MissingEvidence, StepUse, UnusualUse
from analyzers.memory.oom import caught_request, last_oom
from analyzers.memory.scenarios import savings
from analyzers.memory.snapshot import Action, BlockState
from analyzers.memory.stacks import top_stacks
from analyzers.memory.training_loop import TrainingLoop, larger_steps, late_frees, step_uses, training_loop
from analyzers.memory.unusual_use import unusual_uses


def device_account(replay: Replay, guess: Guess) -> list[MemoryPart]:
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


def further_uses(replay: Replay, steps: Sequence[StepUse], loop: TrainingLoop) -> Iterator[UnusualUse]:
    """Yield the unusual uses of memory that only a loop of several steps shows."""
    yield from larger_steps(replay, steps, loop)
    if use := late_frees(replay, loop):
        yield use


_UNSET_THRESHOLDS = ("0", "0.0", "")


def describe(replay: Replay, guess: Guess, arenas: BlockArenas) -> Device:
    """Return all results about one device: peak, categories, stacks, leaks, fragmentation and so on.

    The fields `path`, `rank` and `step` depend on the path of the file; the caller fills them in.
    """
    trace, lives, snapshot = replay.trace, replay.lifetimes, replay.trace.snapshot
    loop = training_loop(replay)
    growing = growing_stacks(replay, guess, loop)
    steps = step_uses(replay, guess, loop.steps)
    oom = last_oom(replay, guess, growing, steps)
    peak, index = replay.peak
    at_peak, at_end = lives.alive(index), lives.alive(len(trace) - 1)
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
        listed_bytes=msgspec.UNSET if replay.consistent else replay.active_bytes,
        reserved_bytes=trace.reserved_bytes,
        peak_reserved_bytes=int(replay.reserved.max(initial=trace.reserved_bytes)),
        limit_bytes=snapshot.limit_bytes,
        limit_name=snapshot.limit_name,
        pools=pool_uses(arenas),
        streams=stream_uses(arenas),
        # The made-up segments of a CPU recording come and go with the tensors: none was given back for a request.
        retries=[] if snapshot.made_up_segments else retries(trace),
        consistent=replay.consistent,
        missing=list(missing_evidence(replay, guess)),
        oom=oom,
        categories=guess.sums(lives, at_peak),
        categories_exact=guess.exact,
        categories_confidence=guess.mean_confidence(lives, at_peak),
        categories_bases=guess.bases(lives, at_peak),
        fragmentation=fragmentation(arenas, oom),
        top_stacks=top_stacks(snapshot, lives, guess, at_peak),
        end_stacks=top_stacks(snapshot, lives, guess, at_end),
        steps=steps if loop.is_annotated else [],
        growing=growing,
        unusual=[*unusual_uses(replay, guess), *(further_uses(replay, steps, loop) if not oom else [])],
        savings=savings(replay, guess, oom.index if oom else index),
        account=device_account(replay, guess),
        nccl_groups=snapshot.recorded_number("nccl_groups") or msgspec.UNSET,
        caught=caught_request(replay) or msgspec.UNSET,
        idle_threshold=idle_threshold(snapshot.settings) or msgspec.UNSET,
    )


def idle_threshold(settings: Mapping[str, str]) -> str:
    """Return the allocator's garbage_collection_threshold if no setting limits its memory; empty if there is none.

    The allocator compares it with the fraction of the device that the process may use: it does nothing unless that is
    set, too (CUDACachingAllocator.cpp, `garbage_collect_cached_blocks`). `set_per_process_memory_fraction` leaves no
    sign in a snapshot.
    """
    threshold = settings.get("garbage_collection_threshold", "0")
    limited = "per_process_memory_fraction" in settings.get("PYTORCH_CUDA_ALLOC_CONF", "")
    return "" if limited or threshold in _UNSET_THRESHOLDS else threshold


def missing_evidence(replay: Replay, guess: Guess) -> Iterator[MissingEvidence]:
    trace, overflowed = replay.trace, replay.trace.snapshot.columns.meta["overflowed"]
    if not trace.has_history:
        yield MissingEvidence.HISTORY
        return
    if len(trace.where(Action.OOM)) and not len(trace.where(Action.ALLOC)):
        yield MissingEvidence.FAILING_STEP
        return
    if not trace.entry("stack").any():
        yield MissingEvidence.STACKS
    if not trace.entry("time").any():
        yield MissingEvidence.TIMES
    if not len(trace.segments):
        yield MissingEvidence.SEGMENTS
    if trace.number < len(overflowed) and overflowed[trace.number]:
        yield MissingEvidence.OLDEST_ENTRIES
    elif replay.start and not guess.exact:
        yield MissingEvidence.ORIGIN_OF_OLDER_BLOCKS
    if not replay.consistent:
        yield MissingEvidence.SOME_ENTRIES
