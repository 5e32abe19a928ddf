"""Give blocks the category of the blocks that they replaced: scripts replace weights, gradients, optimizer state.

Worked example: `p.data = p.data * 0.999` after each step. A new block N of the parameter's size is allocated, then the
old block O is freed, and both live longer than one phase of training. So N replaced O. In the next step another block
replaces N. All of these blocks are one tensor of the script: they form a chain. If the rules know the category of any
block in the chain, all of its blocks get this category.

If a script moves state away and back (to the CPU, for example), the old block is freed first, and the new one is
allocated later.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from analyzers.columns import Column, Integers, Mask
from analyzers.memory.reading.schema import Category
from analyzers.memory.replay.lifetimes import BEFORE, Lifetimes
from analyzers.memory.replay.phases import Phase, PhaseTimeline

_LASTING = (Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER_STATE)
"""The categories of tensors that scripts replace as a whole."""
MOVED = (Category.PARAMETERS, Category.OPTIMIZER_STATE)
"""The categories of tensors that scripts move away, to the CPU for example, and back."""
_LOOK_BACK = 32
"""The number of latest allocations, of the same size in the same interval, that may have replaced a freed block."""
_EVENTS_AT_MOST = 500_000
"""The most blocks that are searched for replacements; searching more would take seconds."""


class Event(NamedTuple):
    """The allocation or the free of one block: trace entry `entry` of the block at row `row` of `Lifetimes`.

    `span` is the number of the interval that the entry is in: a new interval begins when the training phase changes.
    """

    entry: int
    row: int
    is_free: bool
    span: int


class Replacements:
    """Pairs of blocks of equal size; the newer block of a pair took the place of the older one, as in `p.data = ...`.

    `older[i]` and `newer[i]` are the rows in `Lifetimes` of pair i. Only pairs with a block of uncertain category are
    searched (`open_rows`, a mask of all blocks). With `at_once`, the newer block must have been allocated in the same
    phase, before the older one was freed: this excludes state that was moved away and back.
    """

    def __init__(
        self, lives: Lifetimes, phases: PhaseTimeline, category: Column, open_rows: Mask, *, at_once: bool = False
    ) -> None:
        self._lives, self._phases = lives, phases
        pairs = list(_replacements(lives, phases, category, open_rows, at_once=at_once))
        self.older, self.newer = (np.array([pair[k] for pair in pairs], np.int64) for k in range(2))

    def spread(self, category: Column, open_rows: Mask) -> Integers:
        """Return the category that each block inherits along its chain of replacements; -1 if it inherits none.

        `category` has the present category of each block. Only blocks of uncertain category (the mask `open_rows`)
        inherit, and only from blocks of certain category.
        """
        known = np.where(np.isin(category, _LASTING) & ~open_rows, category, -1).astype(np.int64)
        inherited = known.copy()
        # Pairs are in order of time, so that once forward and once backward reaches all of a chain.
        for one, other in (*self._pairs(), *((new, old) for old, new in reversed(list(self._pairs())))):
            if inherited[other] < 0 <= inherited[one] and self._may_be(other, int(inherited[one])):
                inherited[other] = inherited[one]
        return np.where(known < 0, inherited, -1)

    @property
    def has_older(self) -> Mask:
        """A mask of the blocks that replaced an older block."""
        found = np.zeros(len(self._lives.born), bool)
        found[self.newer] = True
        return found

    def _pairs(self) -> Iterator[tuple[int, int]]:
        return zip(self.older.tolist(), self.newer.tolist(), strict=True)

    def _may_be(self, row: int, category: int) -> bool:
        """Return whether the block in this row of `Lifetimes` may have this category.

        Only gradients can be refused: a block that is still alive when the next backward pass begins is not a gradient.
        """
        next_backward = self._phases.next(Phase.BACKWARD, self._lives.born[[row]])[0]
        return category != Category.GRADIENTS or bool(self._lives.died[row] <= next_backward)


def _replacements(
    lives: Lifetimes, phases: PhaseTimeline, category: Column, open_rows: Mask, *, at_once: bool
) -> Iterator[tuple[int, int]]:
    """Yield (older, newer) rows in `Lifetimes` of blocks of equal size, where the newer block replaced the older one.

    `category` and `open_rows` (whether the category is uncertain) have one value per block. `at_once` leaves out blocks
    that were moved away and back.
    """
    away = np.isin(category, MOVED) & ~open_rows & (not at_once)
    rows = candidates(lives, phases, category, open_rows)
    order = np.argsort(lives.size[rows], kind="stable")
    ends = np.flatnonzero(np.diff(lives.size[rows[order]], append=-1)) + 1
    for same_size in np.split(rows[order], ends[:-1]):
        yield from _pair_up(lives, away, _events_of(lives, phases, same_size), open_rows)


def candidates(lives: Lifetimes, phases: PhaseTimeline, category: Column, open_rows: Mask) -> Integers:
    """Return the rows of the blocks that may have replaced each other, judged by their category, lifetime and size.

    There are two kinds of such blocks: a block that certainly has a lasting category, and a block of uncertain category
    (`open_rows`) that lives longer than a training phase. In addition, some block of the same size must have been freed
    in the trace, and some allocated. The result is empty if there are more than `_EVENTS_AT_MOST` blocks.
    """
    born, died = lives.born, np.minimum(lives.died, phases.count - 1)
    outlives = (born == BEFORE) | (lives.died >= phases.count) | (phases.span(born) != phases.span(died))
    lasting = np.isin(category, _LASTING) & ~open_rows
    may_go = (lives.died < phases.count) & (lasting | (outlives & open_rows & (born == BEFORE)))
    may_come = outlives & (born != BEFORE) & (open_rows | lasting)
    rows = np.flatnonzero(lasting | (outlives & open_rows))
    # A size that only goes or only comes cannot make a pair.
    both = np.intersect1d(lives.size[may_go], lives.size[may_come & open_rows])
    both = np.union1d(both, np.intersect1d(lives.size[may_go & open_rows], lives.size[may_come]))
    rows = rows[np.isin(lives.size[rows], both) & (lives.size[rows] > 0)]
    return rows if len(rows) <= _EVENTS_AT_MOST else rows[:0]


def _events_of(lives: Lifetimes, phases: PhaseTimeline, rows: Integers) -> list[Event]:
    """Return the allocations and frees within the trace of the blocks at `rows` of `lives`, in order of time."""
    born, died = rows[lives.born[rows] != BEFORE], rows[lives.died[rows] < phases.count]
    entries = np.concatenate([lives.born[born], lives.died[died]])
    is_free = np.arange(len(entries)) >= len(born)
    order = np.argsort(entries, kind="stable")
    columns = (entries, np.concatenate([born, died]), is_free, phases.span(entries))
    return [Event(*values) for values in zip(*(column[order].tolist() for column in columns), strict=True)]


def _pair_up(lives: Lifetimes, away: Mask, events: list[Event], open_rows: Mask) -> Iterator[tuple[int, int]]:
    """Yield (older, newer) rows among blocks of one size, from their allocations and frees (`events`).

    A freed block was replaced by the last block allocated before the free in the same training phase. If there is no
    such block, the script may have moved it away: the next allocated block replaces it. This is assumed only for blocks
    in `away`, a mask of the blocks that certainly hold weights or optimizer state.
    """
    new: list[Event] = []
    moved_away = deque[int]()
    returns = {event.row for event in events if away[event.row]}
    span = -1
    for event in events:
        # What was allocated in an earlier phase is in use: it takes no place.
        if event.span != span:
            new, span = [], event.span
        if not event.is_free:
            if moved_away and open_rows[event.row]:
                returns.add(event.row)
                yield moved_away.popleft(), event.row
            else:
                new.append(event)
        elif fitting := [one for one in new[-_LOOK_BACK:] if _may_replace(lives, open_rows, event.row, one)]:
            new.remove(fitting[-1])
            yield event.row, fitting[-1].row
        elif event.row in returns:
            moved_away.append(event.row)


def _may_replace(lives: Lifetimes, open_rows: Mask, older: int, newer: Event) -> bool:
    """Return whether the block of the event `newer` may have taken the place of the block at row `older` of `lives`.

    The newer block must have been allocated later, and the category of at least one of the two must be uncertain;
    `open_rows` is a mask of the blocks of uncertain category.
    """
    return bool(lives.born[older] < newer.entry and (open_rows[older] or open_rows[newer.row]))
