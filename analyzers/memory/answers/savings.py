"""What a remedy would free, each estimate with the model it rests on."""

import numpy as np

from analyzers.columns import Column
from analyzers.memory.answers.scenario import Scene, most_frequent, recompute, scaling
from analyzers.memory.categories.categorise import ACTIVATIONS, Guess
from analyzers.memory.model import DeviceTrace, Estimate
from analyzers.memory.replay.lifetimes import Replay
from analyzers.memory.replay.simulator import LARGE_SEGMENT, SMALL_SEGMENT, allocated

LAYERS_AT_LEAST = 2
REPLAYED_AT_MOST = 250_000
"""Entries; replaying them twice takes 3 microseconds each, as long as loading them does."""
FAITHFUL = 0.05


def checkpointing(replay: Replay, guess: Guess, entry: int) -> Estimate | None:
    """What full activation checkpointing would free; needs the layers' names.

    At the peak of whole steps these are replayed with the layers computed again. Where the trace ends in the forward
    pass, as where an allocation failed, each layer's input stays, taken to be of the size that most of its saved
    tensors have; and the larger of what the rest of the model saved, gone when the layers' backward begins, and of the
    largest layer, made again.
    """
    rows = replay.lifetimes.alive(entry)
    rows = rows[guess.category[rows] == ACTIVATIONS]
    scene = Scene.of(replay, guess)
    layers = [np.intersect1d(rows, layer) for layer in scene.layers.values()]
    layers = [layer for layer in layers if len(layer)]
    if len(layers) < LAYERS_AT_LEAST:
        return None
    frees = replayed(scene) if entry == replay.peak[1] else 0
    frees = frees or bounded(scene, rows, layers)
    return (
        Estimate(
            what="activation_checkpointing",
            frees_bytes=frees,
            of_bytes=int(scene.size[rows].sum()),
            model=f"each of {len(layers)} layers keeps its input, and one at a time is computed again",
        )
        if frees > 0
        else None
    )


def replayed(scene: Scene) -> int:
    """By how much the peak falls if every layer is computed again; 0 where the trace has no passes to tell that."""
    recompute(scene, list(scene.layers.values()))
    return scene.replay.peak[0] - int(scene.level().max())


def bounded(scene: Scene, rows: Column, layers: list[Column]) -> int:
    whole = [int(scene.size[layer].sum()) for layer in layers]
    inputs, saved = sum(most_frequent(scene.size[layer]) for layer in layers), int(scene.size[rows].sum())
    return saved - inputs - max(*whole, saved - sum(whole))


def half_batch(replay: Replay, guess: Guess, entry: int) -> Estimate | None:
    """What half the batch, or half the sequence, would free; where it is known what most blocks are."""
    if not guess.exact:
        return None
    scene = Scene.of(replay, guess)
    rows = replay.lifetimes.alive(entry)
    grows = int(scene.size[rows[scaling(scene)[rows]]].sum())
    return (
        Estimate(
            what="half_batch",
            frees_bytes=grows // 2,
            of_bytes=grows,
            model="activations, inputs and what the passes make in between grow with the batch",
        )
        if grows
        else None
    )


def expandable(replay: Replay) -> Estimate | None:
    """What expandable segments would make usable; None where that is nothing, or segments are made up.

    The recorded requests are replayed on both kinds of segments, if on ordinary ones that reserves what was recorded.
    It does not where memory was given back in between, or the trace begins late: then there is only a bound.
    """
    split, bound = whole_handles(replay.trace)
    if replay.trace.snapshot.made_up_segments or not bound:
        return None
    frees, model = (
        bound,
        "at most the whole pieces (2 MiB of small blocks, 20 MiB of large ones) that can be mapped elsewhere",
    )
    if len(replay.trace) <= REPLAYED_AT_MOST:
        plain = allocated(replay, expands=False)
        if abs(plain.reserved - replay.trace.reserved_bytes) <= FAITHFUL * replay.trace.reserved_bytes:
            grown = allocated(replay, expands=True)
            frees = plain.reserved - plain.loose - (grown.reserved - grown.loose)
            model = "the recorded requests on expandable segments, against the same on ordinary ones"
    return Estimate(what="expandable_segments", frees_bytes=max(frees, 0), of_bytes=split, model=model)


def whole_handles(trace: DeviceTrace) -> tuple[int, int]:
    """Bytes of free blocks in segments in use, and what of them are whole handles, the units of mapping."""
    c = trace.snapshot.columns
    segment, free = trace.block("segment"), trace.block("state") == 0
    split = free & np.isin(segment, segment[~free]) & ~c["segment_expandable"][segment]
    start = trace.block("address")[split].astype(np.int64)
    stop = start + trace.block("size")[split]
    handle = np.where(c["segment_total"][segment[split]] <= SMALL_SEGMENT, SMALL_SEGMENT, LARGE_SEGMENT)
    whole = np.maximum(stop // handle - -(-start // handle), 0) * handle
    return int(trace.block("size")[split].sum()), int(whole.sum())


def estimates(replay: Replay, guess: Guess, entry: int) -> list[Estimate]:
    """All that can be told of what is alive after `entry`."""
    found = [checkpointing(replay, guess, entry), half_batch(replay, guess, entry), expandable(replay)]
    return [estimate for estimate in found if estimate]
