"""Sum the memory of a rank by call site, in a form that recordings of other ranks have, too.

A call site is a stack without the frames of libraries, which all ranks of a job share, while the indexes of stacks
differ from file to file.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from analyzers.columns import Column, Integers, Mask
from analyzers.memory.categorise import Guess, categorise
from analyzers.memory.lifetimes import BEFORE, Replay
from analyzers.memory.phases import PATTERN, Sign, stacks_showing
from analyzers.memory.snapshot import CATEGORIES, Category

_STACKS_AT_MOST = 20_000
"""Of how many stacks the call site is looked up; a job that makes new stacks in every step has many more."""
CallSite = tuple[str, ...]
"""The user's frames of a stack as `file:line function`, innermost first."""
_RECOMPUTED = re.compile(r"torch/utils/checkpoint\.py (recompute_fn|unpack_hook|backward)$")
"""Matches a frame `file function` in which activation checkpointing computes activations again."""
OPTIMIZER = re.compile(r"torch[/\\]optim[/\\]")
"""Matches a frame in an optimizer of PyTorch."""
STATE = (Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER_STATE)
"""The categories of memory that depends on the model's size and not on the batch."""


class SiteUse(NamedTuple):
    """The live blocks of one call site: bytes, number, bytes of the largest block, category of most bytes, a stack."""

    bytes: int
    blocks: int
    largest: int
    category: str
    stack: int


@dataclass(frozen=True)
class RankMemory:
    replay: Replay

    @cached_property
    def guess(self) -> Guess:
        return categorise(self.replay)

    def site(self, stack: int) -> CallSite:
        """Return the call site of a stack; empty if no frame is in the user's code, or in a backward pass.

        In a backward pass the line that called it stands for operations of all sizes. In an optimizer of PyTorch the
        call site is the optimizer's own line: which loop calls its step does not matter.
        """
        frames = self.replay.trace.snapshot.frames
        if self.in_backward[stack] or not frames.has_user_line(stack):
            return ()
        if self.in_optimizer[stack]:
            whole = map(str, frames.whole_stack(stack))
            return tuple(frame for frame in whole if OPTIMIZER.search(frame))[:1]
        return tuple(map(str, frames.user_stack(stack)))

    @cached_property
    def in_optimizer(self) -> Mask:
        snapshot = self.replay.trace.snapshot
        return stacks_showing(snapshot, [OPTIMIZER])[0]

    @cached_property
    def in_backward(self) -> Mask:
        snapshot = self.replay.trace.snapshot
        return stacks_showing(snapshot, [re.compile(PATTERN[Sign.ENGINE])])[0]

    @cached_property
    def peak_entry(self) -> int:
        return self.replay.peak[1]

    def live(self, entry: int) -> dict[CallSite, SiteUse]:
        lives = self.replay.lifetimes
        rows = lives.alive(entry)
        uses: dict[CallSite, SiteUse] = {}
        stacks, inverse = np.unique(lives.allocating_stack[rows], return_inverse=True)
        for number, stack in enumerate(stacks.tolist()):
            if site := self.site(stack):
                use = self.use_of(rows[inverse == number], stack)
                uses[site] = joined(uses[site], use) if site in uses else use
        return uses

    def use_of(self, rows: Integers, stack: int) -> SiteUse:
        size = self.replay.lifetimes.size[rows]
        by_category = np.bincount(self.guess.category[rows], size, len(CATEGORIES))
        return SiteUse(int(size.sum()), len(rows), int(size.max()), CATEGORIES[int(by_category.argmax())], stack)

    def largest(self, end: int | None = None) -> dict[CallSite, int]:
        """Return the bytes of the largest block of each call site, among those allocated before trace entry `end`."""
        lives = self.replay.lifetimes
        counted = ~lives.freed_stack & (lives.born != BEFORE)
        counted |= lives.allocating_stack != 0
        counted &= lives.born < (len(self.replay.trace) if end is None else end)
        stacks, inverse = np.unique(lives.stack[counted], return_inverse=True)
        most = np.zeros(len(stacks), np.int64)
        np.maximum.at(most, inverse, lives.size[counted])
        sites: dict[CallSite, int] = {}
        for row in largest_first(most):
            if site := self.site(int(stacks[row])):
                sites[site] = max(int(most[row]), sites.get(site, 0))
        return sites

    def most_blocks(self) -> dict[CallSite, int]:
        """Return the most blocks of each call site that were alive at the same time.

        Stacks of one call site may have had their most at different times; then the number is an upper bound.
        """
        lives = self.replay.lifetimes
        rows = np.flatnonzero(lives.allocating_stack != 0)
        stack = np.tile(lives.allocating_stack[rows], 2)
        when = np.concatenate([lives.born[rows], lives.died[rows]])
        change = np.repeat([1, -1], len(rows))
        order = np.lexsort((change, when, stack))
        stacks, first = np.unique(stack[order], return_index=True)
        most: dict[CallSite, int] = {}
        if len(stacks):
            # All blocks end by the end of the trace, so that the count is 0 again where the next stack begins.
            counts = np.maximum.reduceat(np.cumsum(change[order]), first)
            for row in largest_first(counts):
                if site := self.site(int(stacks[row])):
                    most[site] = most.get(site, 0) + int(counts[row])
        return most

    def state_bytes(self, entry: int) -> int:
        """Return the bytes of parameters, gradients and optimizer state after an entry, and of blocks of older times.

        Blocks that are older than the trace and have no stack belong to the model in most cases.
        """
        lives = self.replay.lifetimes
        rows = lives.alive(entry)
        is_old = (lives.born[rows] == BEFORE) & (lives.allocating_stack[rows] == 0)
        return int(lives.size[rows[is_old | np.isin(self.guess.category[rows], STATE)]].sum())

    @cached_property
    def recomputes(self) -> bool:
        snapshot = self.replay.trace.snapshot
        [shown] = stacks_showing(snapshot, [_RECOMPUTED])
        stack: Column = self.replay.trace.entry("stack")
        return bool(shown[np.unique(stack)].any())


def largest_first(values: Integers) -> list[int]:
    order: list[int] = np.argsort(-values, kind="stable")[:_STACKS_AT_MOST].tolist()
    return order


def joined(a: SiteUse, b: SiteUse) -> SiteUse:
    main = max(a, b)
    return SiteUse(a.bytes + b.bytes, a.blocks + b.blocks, max(a.largest, b.largest), main.category, main.stack)


def highest(maps: Iterable[Mapping[CallSite, int]]) -> dict[CallSite, int]:
    """Return the largest value of each call site in several maps."""
    most: dict[CallSite, int] = {}
    for values in maps:
        for site, value in values.items():
            most[site] = max(value, most.get(site, 0))
    return most
