"""What a remedy would free, each estimate with the model it rests on."""

import re
from collections import defaultdict

import numpy as np

from analyzers.memory.categories import ACTIVATIONS, Guess
from analyzers.memory.model import DeviceTrace, Estimate
from analyzers.memory.replay import Replay
from analyzers.memory.tables import Column

LAYER = re.compile(r"^(.*?)\.(\d+)(?:\.|$)")
LAYERS_AT_LEAST = 2
PAGE = 2 << 20
"""Bytes of the pages that expandable segments are made of."""


def checkpointing(replay: Replay, guess: Guess, entry: int) -> Estimate | None:
    """What full activation checkpointing would free after `entry`; needs the layers' names.

    Of each layer its input stays, taken to be of the size that most of its saved tensors have. Beside these there is
    what the rest of the model saved, gone when the layers' backward begins, and later the largest layer, made again.
    """
    lives = replay.lifetimes
    rows = lives.alive(entry)
    rows = rows[guess.category[rows] == ACTIVATIONS]
    layers = by_layer(replay, rows)
    if len(layers) < LAYERS_AT_LEAST:
        return None
    whole = [int(sizes.sum()) for sizes in layers.values()]
    inputs, saved = sum(most_frequent(sizes) for sizes in layers.values()), int(lives.size[rows].sum())
    frees = saved - inputs - max(*whole, saved - sum(whole))
    if frees <= 0:
        return None
    return Estimate(
        what="activation_checkpointing",
        frees_bytes=frees,
        of_bytes=saved,
        model=f"each of {len(layers)} layers keeps its input, and one at a time is computed again",
    )


def by_layer(replay: Replay, rows: Column) -> dict[str, Column]:
    """The sizes of the blocks whose label names a numbered layer, by layer."""
    lives, found = replay.lifetimes, defaultdict(list)
    for label in np.unique(lives.label[rows]):
        if named := LAYER.match(replay.trace.snapshot.text(int(label))):
            found[named[0]].append(lives.size[rows[lives.label[rows] == label]])
    return {name.rstrip("."): np.concatenate(sizes) for name, sizes in found.items()}


def most_frequent(sizes: Column) -> int:
    """The size that occurs most often; of several the largest."""
    known, count = np.unique(sizes, return_counts=True)
    return int(known[count == count.max()][-1])


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
    found = [checkpointing(replay, guess, entry), expandable(replay.trace)]
    return [estimate for estimate in found if estimate]
