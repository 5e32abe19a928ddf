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
from analyzers.memory.categories.categorise import Guess
from analyzers.memory.categories.stack_signs import phase_of_entries, stack_signs
from analyzers.memory.job import Job
from analyzers.memory.reading.schema import CATEGORIES, Action, Category
from analyzers.memory.replay.lifetimes import BEFORE, Replay
from analyzers.memory.replay.phases import EntryWindows, Phase, PhaseTimeline, annotated_windows

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
            return PhaseTimeline(phase_of_entries(trace, stack_signs(trace.snapshot))).at(born)
        in_forward = np.where(self.forward.contains(born), int(Phase.FORWARD), int(Phase.NONE))
        return np.where(self.backward.contains(born), int(Phase.BACKWARD), in_forward)

    @cached_property
    def forward_passes(self) -> EntryWindows:
        """The trace entries of the forward passes, from annotations, or from stacks if there are none."""
        if len(self.forward.start):
            return self.forward
        trace = self.replay.trace
        timeline = PhaseTimeline(phase_of_entries(trace, stack_signs(trace.snapshot)))
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
        """A mask of the blocks that were allocated before the recording began."""
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
    """Return a sort key that puts `layers.10` after `layers.9`."""
    prefix, _, number = layer.rpartition(".")
    return prefix, int(number)


def layer_of(label: str) -> str | None:
    """Return the numbered layer at the beginning of a label: `layers.3` for `layers.3.attention.wq`; else None."""
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
            layer_input = saved[scenario.size[saved] == most_frequent(scenario.size[saved])][:1]
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


def most_frequent(sizes: Integers) -> int:
    """Return the size that occurs most often; if several sizes occur equally often, the largest of them."""
    known, count = np.unique(sizes, return_counts=True)
    return int(known[count == count.max()][-1])
