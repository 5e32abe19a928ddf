"""Estimate how much memory a remedy would free: activation checkpointing, half the batch, expandable segments."""

from collections.abc import Sequence

import numpy as np

from analyzers.columns import Integers
from analyzers.memory.categories.categorise import Guess
from analyzers.memory.counterfactuals.scenario import Scenario, grows_with_batch, most_frequent, recompute
from analyzers.memory.model import Remedy, Saving
from analyzers.memory.reading.schema import BlockState, Category
from analyzers.memory.reading.snapshot import DeviceTrace
from analyzers.memory.replay.lifetimes import Replay
from analyzers.memory.replay.simulator import LARGE_SEGMENT, SMALL_SEGMENT, simulate

_LAYERS_AT_LEAST = 2
_SIMULATED_ENTRIES_AT_MOST = 250_000
"""The most trace entries for which the allocator is simulated; two simulations take 3 µs per entry."""
_FAITHFUL = 0.05
"""The largest relative error of the simulation, in reserved bytes, with which its result is used."""


def savings(replay: Replay, guess: Guess, entry: int) -> list[Saving]:
    """Return, for each remedy, how much of the memory alive after trace entry `entry` it would free.

    A remedy is left out if the recording does not allow an estimate.
    """
    estimates = [checkpointing(replay, guess, entry), half_batch(replay, guess, entry), expandable_segments(replay)]
    return [saving for saving in estimates if saving]


def checkpointing(replay: Replay, guess: Guess, entry: int) -> Saving | None:
    """Return the saving by full activation checkpointing; None if the labels name fewer than two layers.

    If `entry` is the peak and the forward and backward passes are known, the blocks are moved to where recomputation
    would allocate them (see `scenario`), and the saving is by how much the peak falls: what `--what-if ac=full` says.
    If an allocation failed in a forward pass, or no passes are known, only a bound is possible (`_bound_of_saving`).
    """
    rows = replay.lifetimes.alive(entry)
    rows = rows[guess.category[rows] == Category.ACTIVATIONS]
    scenario = Scenario.recorded(replay, guess)
    layers = [np.intersect1d(rows, layer) for layer in scenario.layers.values()]
    layers = [layer for layer in layers if len(layer)]
    if len(layers) < _LAYERS_AT_LEAST:
        return None
    # Before or after the peak the replay is no answer: it says by how much the peak falls.
    frees = _saving_of_peak(scenario) if entry == replay.peak[1] else None
    if frees is None:
        frees = _bound_of_saving(scenario, rows, layers)
    if frees <= 0:
        return None
    return Saving(
        remedy=Remedy.ACTIVATION_CHECKPOINTING,
        frees_bytes=frees,
        of_bytes=int(scenario.size[rows].sum()),
        model=f"each of {len(layers)} layers keeps its input, and one layer at a time is computed again",
    )


def _saving_of_peak(scenario: Scenario) -> int | None:
    """Return by how many bytes the peak falls if every layer is recomputed in the backward pass.

    The result is None if no forward pass is known, or if a request failed in one. The scenario is changed in place.
    """
    if scenario.failed_in_forward or not recompute(scenario, list(scenario.layers.values())):
        return None
    return scenario.replay.peak[0] - int(scenario.live_bytes().max())


def _bound_of_saving(scenario: Scenario, rows: Integers, layers: Sequence[Integers]) -> int:
    """Return how many bytes of activations checkpointing of every layer would free at most, at the peak of a step.

    `rows` are the blocks that hold activations, `layers` those of each layer. With checkpointing each layer keeps only
    its input; its size is assumed to be the most frequent size among the layer's saved tensors. The new peak is at one
    of two times: when the backward pass starts (all that the rest of the model saved is alive), or when it recomputes
    the largest layer. Example: 4 layers save 10 MiB each, of which 1 MiB is the input, and the rest of the model saves
    8 MiB, in all 48 MiB. Afterwards 4 MiB of inputs stay, and the larger of 8 MiB (the rest) and 10 MiB (a layer): 34
    MiB are freed.
    """
    whole = [int(scenario.size[layer].sum()) for layer in layers]
    inputs = sum(most_frequent(scenario.size[layer]) for layer in layers)
    saved = int(scenario.size[rows].sum())
    return saved - inputs - max(*whole, saved - sum(whole))


def half_batch(replay: Replay, guess: Guess, entry: int) -> Saving | None:
    """Return how much of the memory alive after trace entry `entry` half the batch (or half the sequence) would free.

    The result is None if no such memory is alive, or if the categories of blocks are guessed and not recorded.
    """
    if not guess.exact:
        return None
    scenario = Scenario.recorded(replay, guess)
    rows = replay.lifetimes.alive(entry)
    growing_bytes = int(scenario.size[rows[grows_with_batch(scenario)[rows]]].sum())
    if not growing_bytes:
        return None
    return Saving(
        remedy=Remedy.HALF_BATCH,
        frees_bytes=growing_bytes // 2,
        of_bytes=growing_bytes,
        model="activations, inputs and temporary tensors of forward and backward grow with the batch size and the"
        " sequence length",
    )


def expandable_segments(replay: Replay) -> Saving | None:
    """Return how much memory expandable segments would make usable; None if they would gain nothing.

    The result is also None for a recording on a CPU, which has no real segments. The recorded requests are simulated
    with both kinds of segments. This is exact only if the simulation of ordinary segments reserves as many bytes as
    were recorded. It does not if memory was released in between, or if the trace begins late; then the result is only
    an upper bound.
    """
    split, bound = remappable_bytes(replay.trace)
    if replay.trace.snapshot.made_up_segments or not bound:
        return None
    frees = bound
    model = "at most: the driver can only move whole free units of 2 MiB (20 MiB for large blocks)"
    if len(replay.trace) <= _SIMULATED_ENTRIES_AT_MOST:
        ordinary = simulate(replay, expandable=False)
        if abs(ordinary.reserved - replay.trace.reserved_bytes) <= _FAITHFUL * replay.trace.reserved_bytes:
            expanding = simulate(replay, expandable=True)
            # Compare what each cannot give back: memory that can be released is no loss on either kind.
            frees = ordinary.reserved - ordinary.releasable - (expanding.reserved - expanding.releasable)
            model = "according to a simulation of the recorded requests with and without expandable segments"
    return Saving(remedy=Remedy.EXPANDABLE_SEGMENTS, frees_bytes=max(frees, 0), of_bytes=split, model=model)


def remappable_bytes(trace: DeviceTrace) -> tuple[int, int]:
    """Return the free bytes in segments that also hold live blocks, and how many expandable segments could move.

    Only whole units of mapping (2 or 20 MiB) can be moved to other addresses.
    """
    c = trace.snapshot.columns
    segment, free = trace.block("segment"), trace.block("state") == BlockState.INACTIVE
    # Segments that are expandable already have nothing to gain; wholly free ones can be given back as they are.
    split = free & np.isin(segment, segment[~free]) & ~c["segment_expandable"][segment]
    start = trace.block("address")[split].astype(np.int64)
    stop = start + trace.block("size")[split]
    unit = np.where(c["segment_total"][segment[split]] <= SMALL_SEGMENT, SMALL_SEGMENT, LARGE_SEGMENT)
    whole = np.maximum(stop // unit - -(-start // unit), 0) * unit
    return int(trace.block("size")[split].sum()), int(whole.sum())
