"""What a remedy would free, each estimate with the model it rests on."""

import numpy as np

from analyzers.memory.categories import ACTIVATIONS, Guess
from analyzers.memory.model import DeviceTrace, Estimate
from analyzers.memory.replay import Replay
from analyzers.memory.scene import Scene, most_frequent, recompute, scaling
from analyzers.memory.tables import Column

LAYERS_AT_LEAST = 2
PAGE = 2 << 20
"""Bytes of the pages that expandable segments are made of."""


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


def expandable(trace: DeviceTrace) -> Estimate | None:
    """What expandable segments would make usable: the whole pages inside free blocks of segments in use."""
    c = trace.snapshot.columns
    segment, free = trace.block("segment"), trace.block("state") == 0
    split = free & np.isin(segment, segment[~free]) & ~c["segment_expandable"][segment]
    start = trace.block("address")[split].astype(np.int64)
    stop = start + trace.block("size")[split]
    pages = np.maximum(stop // PAGE - -(-start // PAGE), 0)
    if trace.snapshot.made_up_segments or not pages.any():
        return None
    return Estimate(
        what="expandable_segments",
        frees_bytes=int(pages.sum()) * PAGE,
        of_bytes=int(trace.block("size")[split].sum()),
        model="whole pages of 2 MiB inside free blocks can be mapped elsewhere",
    )


def estimates(replay: Replay, guess: Guess, entry: int) -> list[Estimate]:
    """All that can be told of what is alive after `entry`."""
    found = [checkpointing(replay, guess, entry), half_batch(replay, guess, entry), expandable(replay.trace)]
    return [estimate for estimate in found if estimate]
