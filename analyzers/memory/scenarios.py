"""Simulate other settings: move and resize the blocks of a recording, and compute the live bytes over time again.

Worked example, activation checkpointing of one layer: its five saved tensors of 4, 1, 1, 1 and 1 MiB are allocated in
the forward pass at entries 10 to 14 and freed in the backward pass at entries 30 to 26. One tensor of the most frequent
size, 1 MiB, counts as the layer's input and stays as it is. The other four are moved to the start of the layer's
backward pass, just before the first of them is freed: they are now allocated at entry 25. `live_bytes` then sums all
blocks again, entry by entry.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analyzers.columns import Column, Integers, Mask
from analyzers.memory.categorise import Guess
from analyzers.memory.job import Job
from analyzers.memory.lifetimes import BEFORE, Replay
from analyzers.memory.model import Remedy, Saving
from analyzers.memory.phases import EntryWindows, Phase, PhaseTimeline, annotated_windows
from analyzers.memory.simulator import LARGE_SEGMENT, SMALL_SEGMENT, simulate
from analyzers.memory.snapshot import CATEGORIES, Action, BlockState, Category, DeviceTrace

_LAYER_LABEL = re.compile(r"^(.*?)\.(\d+)(?:\.|$)")
"""Finds the numbered layer in a label: `layers.3.attention.wq` begins with `layers.3`."""


@dataclass
class Scenario:
    """The blocks of a recording under other settings, such as a larger batch; functions change it in place.

    The columns `category`, `size`, `born` and `died` have one row per row of `Lifetimes`. `extra[k + 1]` are bytes
    after trace entry k that belong to no block (`extra[0]`: before the trace). `layers` has the rows of each numbered
    layer, in order. `forward` and `backward` are the trace entries of the passes, marked by annotations.
    """

    replay: Replay
    guess: Guess
    job: Job | None
    category: Column
    size: Integers
    born: Integers
    died: Integers
    extra: Integers
    layers: Mapping[str, Integers]
    forward: EntryWindows
    backward: EntryWindows

    @classmethod
    def recorded(cls, replay: Replay, guess: Guess, job: Job | None = None) -> "Scenario":
        """Return a scenario that equals the recording. Its columns of sizes and times are copies and may be changed."""
        lives, trace = replay.lifetimes, replay.trace
        return cls(
            replay=replay,
            guess=guess,
            job=job,
            category=guess.category,
            size=lives.size.astype(np.int64),
            born=lives.born.astype(np.int64),
            died=lives.died.astype(np.int64),
            extra=np.zeros(len(trace) + 1, np.int64),
            layers=_rows_by_layer(replay),
            forward=annotated_windows(trace, "fwd"),
            backward=annotated_windows(trace, "bwd"),
        )

    @cached_property
    def phase(self) -> Integers:
        """The training phase in which each block was allocated, from annotations, or from stacks if there are none."""
        born, trace = self.replay.lifetimes.born, self.replay.trace
        if not len(self.forward.start):
            return PhaseTimeline.of(trace).at(born)
        in_forward = np.where(self.forward.contains(born), int(Phase.FORWARD), int(Phase.NONE))
        return np.where(self.backward.contains(born), int(Phase.BACKWARD), in_forward)

    @cached_property
    def forward_passes(self) -> EntryWindows:
        if len(self.forward.start):
            return self.forward
        trace = self.replay.trace
        timeline = PhaseTimeline.of(trace)
        in_forward = timeline.last(np.arange(len(trace))) == Phase.FORWARD
        edges = np.flatnonzero(np.diff(in_forward.astype(np.int8), prepend=0, append=0))
        return EntryWindows(edges[::2], edges[1::2])

    @property
    def failed_in_forward(self) -> bool:
        """Whether the last request that failed was in a forward pass, whose backward pass was never recorded."""
        failures = self.replay.trace.where(Action.OOM)
        return bool(len(failures)) and bool(self.forward_passes.contains(failures[-1:])[0])

    @property
    def is_older(self) -> Mask:
        older: Mask = self.born == BEFORE
        return older

    def live_bytes(self) -> Integers:
        """Return the live bytes after each trace entry: index k + 1 is after entry k, index 0 is before the trace."""
        change = np.zeros(len(self.extra) + 1, np.int64)
        # Shifted by one, so that blocks older than the trace (born -1) count at position 0.
        np.add.at(change, self.born + 1, self.size)
        np.add.at(change, self.died + 1, -self.size)
        return self.extra + np.cumsum(change)[:-1]

    def categories_at(self, position: int) -> dict[str, int]:
        """Return the live bytes of each category at index `position` of `live_bytes`: after entry `position` - 1.

        `extra` bytes count as parameters, because gathered weights are the only ones without a block of their own.
        """
        alive = (self.born + 1 <= position) & (self.died + 1 > position)
        total = np.bincount(self.category[alive], self.size[alive], len(CATEGORIES)).astype(np.int64)
        # Only gathered weights have no block of their own.
        total[Category.PARAMETERS] += self.extra[position]
        return dict(zip(CATEGORIES, total.tolist(), strict=True))


def layer_order(layer: str) -> tuple[str, int]:
    prefix, _, number = layer.rpartition(".")
    return prefix, int(number)


def layer_of(label: str) -> str | None:
    matched = _LAYER_LABEL.match(label)
    return matched[0].rstrip(".") if matched else None


def _rows_by_layer(replay: Replay) -> dict[str, Integers]:
    """Return, for each numbered layer in order, the rows in `Lifetimes` of the blocks whose label names the layer."""
    lives = replay.lifetimes
    rows: dict[str, list[Integers]] = {}
    for label in np.unique(lives.label):
        if layer := layer_of(replay.trace.snapshot.text(int(label))):
            rows.setdefault(layer, []).append(np.flatnonzero(lives.label == label))
    return {layer: np.concatenate(rows[layer]) for layer in sorted(rows, key=layer_order)}


def grows_with_batch(scenario: Scenario) -> Mask:
    """Return a mask of the blocks whose size grows with the batch size and the sequence length.

    These are inputs, activations, and temporary tensors of the forward and backward passes. Gradients of weights do not
    grow; a temporary block with the size of a weight is taken for such a gradient.
    """
    size, category = scenario.replay.lifetimes.size, scenario.category
    weights = np.unique(size[(category == Category.PARAMETERS) | (category == Category.GRADIENTS)])
    of_weights = (scenario.phase == Phase.BACKWARD) & np.isin(size, weights)
    temporary: Mask = (category == Category.TEMPORARY) & (scenario.phase != Phase.NONE) & ~of_weights
    saved: Mask = category == Category.ACTIVATIONS
    job = scenario.job
    if job and job.dp_shard == 1 and job.compute_bytes < job.state_bytes:
        # autocast saves copies of the weights in half precision: activations that do not grow.
        saved &= ~np.isin(size, weights // 2)
    inputs: Mask = category == Category.INPUTS
    return inputs | saved | temporary


def recompute(scenario: Scenario, layers: Sequence[Integers]) -> int:
    """Change the scenario so that the given layers keep only their input and are recomputed in the backward pass.

    Each element of `layers` is one of the arrays in `scenario.layers`: the rows in `Lifetimes` of one layer's blocks.
    The result is the number of blocks that were moved; 0 if no forward pass with saved tensors of layers is known.
    """
    passes = scenario.forward_passes
    windows = map(range, passes.start.tolist(), passes.end.tolist())
    return sum(_delay_saved_tensors(scenario, layers, window) for window in windows)


def _delay_saved_tensors(scenario: Scenario, layers: Sequence[Integers], forward: range) -> int:
    """Move the allocation of tensors that some layers saved in one forward pass to the layer's backward pass.

    The scenario is changed in place. Each element of `layers` is one of the arrays in `scenario.layers`. Each layer
    keeps one tensor, its input. `forward` is the range of the trace entries of the forward pass. The result is the
    number of moved blocks.
    """
    moved_blocks, backward_begins = 0, -1
    # The backward pass meets the layers in reverse order; each begins when the one before it has freed its tensors.
    for rows, saved in reversed(_saved_by_layer(scenario, forward)):
        # One entry earlier than the first tensor dies: it must be there when it is used.
        backward_begins = max(backward_begins, int(scenario.died[saved].min()) - 1)
        if any(rows is layer for layer in layers):
            layer_input = saved[scenario.size[saved] == _most_frequent(scenario.size[saved])][:1]
            moved = np.setdiff1d(saved, layer_input)
            scenario.born[moved] = np.minimum(backward_begins, scenario.died[moved])
            moved_blocks += len(moved)
        backward_begins = int(scenario.died[saved].max())
    return moved_blocks


def _saved_by_layer(scenario: Scenario, forward: range) -> list[tuple[Integers, Integers]]:
    """Return, for each layer with saved tensors from one forward pass, its rows and those of these tensors.

    The layers are in the order of their first saved tensor. `forward` is the range of the trace entries of the pass.
    """
    found = []
    for rows in scenario.layers.values():
        saved = rows[(scenario.category[rows] == Category.ACTIVATIONS) & (scenario.born[rows] >= forward.start)]
        saved = saved[scenario.born[saved] < forward.stop]
        if len(saved):
            found.append((rows, saved))
    return sorted(found, key=lambda layer: int(scenario.born[layer[1]].min()))


def _most_frequent(sizes: Integers) -> int:
    """Return the size that occurs most often; if several sizes occur equally often, the largest of them."""
    known, count = np.unique(sizes, return_counts=True)
    return int(known[count == count.max()][-1])


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
    inputs = sum(_most_frequent(scenario.size[layer]) for layer in layers)
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
    split, bound = _remappable_bytes(replay.trace)
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


def _remappable_bytes(trace: DeviceTrace) -> tuple[int, int]:
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
