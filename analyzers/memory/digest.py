"""Read a snapshot file in a child process, and compute all results that need no other file.

The results are cached together with the columns: opening the same file again shows them at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from analyzers import unpickle
from analyzers.columns import Column, Integers, UnsavedColumns
from analyzers.device_memory import KnownMemory, MemoryPart, account_for
from analyzers.memory.arenas import BlockArenas, pool_uses, stream_uses
from analyzers.memory.categorise import Guess, categorise
from analyzers.memory.fragmentation import fragmentation
from analyzers.memory.leaks import growing_stacks
from analyzers.memory.lifetimes import BEFORE, Lifetimes, Replay, retries
from analyzers.memory.model import Device, MissingEvidence, StepUse, UnusualUse
from analyzers.memory.oom import caught_request, last_oom
from analyzers.memory.reading import reader
from analyzers.memory.scenarios import savings
from analyzers.memory.snapshot import Action, BlockState, DeviceTrace, Snapshot
from analyzers.memory.stacks import top_stacks
from analyzers.memory.training_loop import TrainingLoop, larger_steps, late_frees, step_uses, training_loop
from analyzers.memory.unusual_use import unusual_uses
from analyzers.store import code_version


def _device_account(replay: Replay, guess: Guess) -> list[MemoryPart]:
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
        account=_device_account(replay, guess),
        nccl_groups=snapshot.recorded_number("nccl_groups") or msgspec.UNSET,
        caught=caught_request(replay) or msgspec.UNSET,
        idle_threshold=idle_threshold(snapshot.settings) or msgspec.UNSET,
        older_blocks_known=snapshot.recorder.get("older_blocks_known", False) is True or msgspec.UNSET,
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


VERSION = code_version(Path(__file__).parent)
"""A checksum of the code of the memory analyzer, which is a part of the cache's key.

Results change when any of its modules changes.
"""


def read(paths: list[Path]) -> tuple[dict[str, Column], dict[str, Any]]:
    """Return the columns and the metadata of a snapshot file, and the results computed from them.

    `paths` holds the one file. The columns come from `reader.read` and `_derived_columns`. `meta["devices"]` has a
    `model.Device` for each device, without the fields that come from the file's path; `meta["lifetimes"]` has the
    number of rows that each device has in the `life_*` columns.

    Raises:
        InputError: The file is not readable, or does not have the structure of a snapshot.
        HostileInput: The file would run code, or has a structure that no recorder writes.
    """
    columns, meta = reader.read(paths)
    snapshot = Snapshot(UnsavedColumns(columns, meta))
    replays = [Replay(snapshot.device(number)) for number in snapshot.devices]
    with unpickle.gc_paused():
        guesses = [categorise(replay) for replay in replays]
        arenas = [BlockArenas(replay) for replay in replays]
        derived = [_derived_columns(*each) for each in zip(replays, guesses, arenas, strict=True)]
        columns |= {name: np.concatenate([part[name] for part in derived]) for name in derived[0]}
        answers = [describe(*each) for each in zip(replays, guesses, arenas, strict=True)]
    return columns, meta | {
        "devices": msgspec.to_builtins(answers),
        "lifetimes": [len(part["life_born"]) for part in derived],
    }


def _derived_columns(replay: Replay, guess: Guess, arenas: BlockArenas) -> dict[str, Column]:
    """Return the columns that are computed from one device's trace.

    `live_bytes`, `entry_arena` and `entry_category` have one row per trace entry. The columns `life_*` have one row per
    block that ever lived: the columns of `Lifetimes`, the block's arena (stream and pool), its category, and the rule
    that decided the category.
    """
    lives = replay.lifetimes
    return {
        "live_bytes": replay.live_bytes,
        "entry_arena": arenas.by_entry,
        "entry_category": _categories_of_entries(replay.trace, lives, guess.category),
        # int32 holds any entry or stack of a real file, at half the disk and page cache.
        "life_born": lives.born.astype(np.int32),
        "life_died": lives.died.astype(np.int32),
        "life_addr": lives.addr,
        "life_size": lives.size,
        "life_stack": lives.stack.astype(np.int32),
        "life_category": lives.category,
        "life_label": lives.label.astype(np.int32),
        "life_arena": arenas.by_block,
        "life_freed_stack": lives.freed_stack,
        "life_guess": guess.category,
        "life_rule": guess.rule,
    }


def _categories_of_entries(trace: DeviceTrace, lives: Lifetimes, category: Integers) -> Column:
    """Return, for each trace entry, the category of the block that it allocates or frees; 0 for other entries.

    0 is also the number of a category (parameters), so the value of other entries must not be used.
    """
    kind = np.zeros(len(trace), np.int8)
    inside = lives.born != BEFORE
    kind[lives.born[inside]] = category[inside]
    ended = lives.died < len(trace)
    kind[lives.died[ended]] = category[ended]
    return kind
