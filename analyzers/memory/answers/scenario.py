"""The blocks of a recording, to be moved and resized: what it would have been under other settings."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analyzers.columns import Column
from analyzers.memory.categories.categorise import Guess
from analyzers.memory.categories.rules import phase_of_entries, stack_signs
from analyzers.memory.reading.job import Job
from analyzers.memory.reading.reader import CATEGORIES, CATEGORY_OF
from analyzers.memory.replay.lifetimes import BEFORE, Replay
from analyzers.memory.replay.phases import BACKWARD, FORWARD, NO_PHASE, Phases, Windows, windows

LAYER = re.compile(r"^(.*?)\.(\d+)(?:\.|$)")
ACTIVATIONS, GRADIENTS, INPUTS, PARAMETERS, TEMPORARY = (
    CATEGORY_OF[name] for name in ("activations", "gradients", "inputs", "parameters", "temporary")
)


@dataclass
class Scene:
    """The blocks of a recording as a change leaves them; `extra` are bytes that no block of it stands for, by entry."""

    replay: Replay
    job: Job | None
    category: Column
    size: Column
    born: Column
    died: Column
    extra: Column
    layers: Mapping[str, Column]
    passes: tuple[Windows, Windows]

    @classmethod
    def of(cls, replay: Replay, guess: Guess, job: Job | None = None) -> "Scene":
        lives, trace = replay.lifetimes, replay.trace
        return cls(
            replay, job, guess.category, lives.size.astype(np.int64), lives.born.astype(np.int64),
            lives.died.astype(np.int64), np.zeros(len(trace) + 1, np.int64), by_layer(replay),
            (windows(trace, "fwd"), windows(trace, "bwd")),
        )  # fmt: skip

    @cached_property
    def phase(self) -> Column:
        """The phase that each block was born in: as annotated, else as the stacks show."""
        born, trace = self.replay.lifetimes.born, self.replay.trace
        forward, backward = self.passes
        if len(forward.start):
            return np.where(backward.inside(born), BACKWARD, np.where(forward.inside(born), FORWARD, NO_PHASE))
        return Phases(phase_of_entries(trace, stack_signs(trace.snapshot))).at(born)

    @property
    def standing(self) -> Column:
        """Whether each block is older than the recording."""
        found: Column = self.born == BEFORE
        return found

    def level(self) -> Column:
        """Bytes after each entry; the first place is before all of them."""
        found: Column = self.extra + self.total(np.ones(len(self.size), bool))
        return found

    def total(self, chosen: Column) -> Column:
        change = np.zeros(len(self.extra) + 1, np.int64)
        np.add.at(change, self.born[chosen] + 1, self.size[chosen])
        np.add.at(change, self.died[chosen] + 1, -self.size[chosen])
        found: Column = np.cumsum(change)[:-1]
        return found

    def categories(self, place: int) -> dict[str, int]:
        """Bytes by category at a place of `level`; what no block stands for are gathered weights."""
        alive = (self.born + 1 <= place) & (self.died + 1 > place)
        held = np.bincount(self.category[alive], self.size[alive], len(CATEGORIES)).astype(np.int64)
        held[PARAMETERS] += self.extra[place]
        return dict(zip(CATEGORIES, held.tolist(), strict=True))


def by_layer(replay: Replay) -> dict[str, Column]:
    """The rows of the blocks whose label names a numbered layer, by layer, in order."""
    lives, found = replay.lifetimes, dict[str, list[Column]]()
    for label in np.unique(lives.label):
        if named := LAYER.match(replay.trace.snapshot.text(int(label))):
            found.setdefault(named[0].rstrip("."), []).append(np.flatnonzero(lives.label == label))
    ordered = sorted(found, key=lambda name: (name.rpartition(".")[0], int(name.rpartition(".")[2])))
    return {name: np.concatenate(found[name]) for name in ordered}


def scaling(scene: Scene) -> Column:
    """Which blocks grow with the number of positions: not the gradients of weights, known by their sizes."""
    size = scene.replay.lifetimes.size
    weights = np.unique(size[(scene.category == PARAMETERS) | (scene.category == GRADIENTS)])
    of_weights = (scene.phase == BACKWARD) & np.isin(size, weights)
    passing = (scene.category == TEMPORARY) & (scene.phase != NO_PHASE) & ~of_weights
    saved = scene.category == ACTIVATIONS
    if scene.job and scene.job.dp_shard == 1 and scene.job.compute_bytes < scene.job.state_bytes:
        saved &= ~np.isin(size, weights // 2)  # autocast's copies of the weights
    found: Column = (scene.category == INPUTS) | saved | passing
    return found


def recompute(scene: Scene, chosen: list[Column]) -> None:
    """Let the chosen layers keep their input alone, in every forward pass, and be computed again in the backward."""
    for start, end in zip(scene.passes[0].start, scene.passes[0].end, strict=True):
        delayed(scene, chosen, range(int(start), int(end)))


def delayed(scene: Scene, chosen: list[Column], forward: range) -> None:
    """Move what the chosen layers saved in one forward pass to the begin of each one's backward pass."""
    begins = -1
    for rows in reversed(list(scene.layers.values())):
        saved = rows[(scene.category[rows] == ACTIVATIONS) & (scene.born[rows] >= forward.start)]
        saved = saved[scene.born[saved] < forward.stop]
        if not len(saved):
            continue
        begins = max(begins, int(scene.died[saved].min()) - 1)
        if any(rows is one for one in chosen):
            kept = saved[scene.size[saved] == most_frequent(scene.size[saved])][:1]
            moved = np.setdiff1d(saved, kept)
            scene.born[moved] = np.minimum(begins, scene.died[moved])
        begins = int(scene.died[saved].max())


def most_frequent(sizes: Column) -> int:
    """The size that occurs most often; of several the largest."""
    known, count = np.unique(sizes, return_counts=True)
    return int(known[count == count.max()][-1])
