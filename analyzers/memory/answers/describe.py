"""Collect all results about one device of one snapshot."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from analyzers.memory.answers.device_account import device_account
from analyzers.memory.answers.fragmentation import fragmentation
from analyzers.memory.answers.larger_steps import larger_steps
from analyzers.memory.answers.late_frees import late_frees
from analyzers.memory.answers.leaks import growing_stacks
from analyzers.memory.answers.oom import caught_request, last_oom
from analyzers.memory.answers.stacks import top_stacks
from analyzers.memory.answers.step_use import step_uses
from analyzers.memory.answers.training_loop import TrainingLoop, training_loop
from analyzers.memory.answers.unusual_use import unusual_uses
from analyzers.memory.categories.categorise import Guess
from analyzers.memory.counterfactuals.savings import savings
from analyzers.memory.model import Device, MissingEvidence, StepUse, UnusualUse
from analyzers.memory.reading.schema import Action
from analyzers.memory.replay.arenas import BlockArenas, pool_uses, stream_uses
from analyzers.memory.replay.lifetimes import Replay
from analyzers.memory.replay.reserved import retries


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
    """Yield each kind of evidence that is missing in the snapshot for this device."""
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
