"""Decide the category of each block, such as gradients: the recorder's tag, or the first rule that matches."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from analyzers.columns import Column, Floats, Integers, Mask
from analyzers.memory.lifetimes import BEFORE, Lifetimes, Replay
from analyzers.memory.model import CategoryBasis
from analyzers.memory.phases import Phase, PhaseTimeline, Sign, annotated_windows, phase_of_entries, stack_signs
from analyzers.memory.snapshot import CATEGORIES, UNTAGGED, Category, DeviceTrace

_LASTING = (Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER_STATE)
"""The categories of tensors that scripts replace as a whole."""
_MOVED = (Category.PARAMETERS, Category.OPTIMIZER_STATE)
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
    away = np.isin(category, _MOVED) & ~open_rows & (not at_once)
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


# Guess the category of blocks that no recorder tagged, from their stacks, training phases and lifetimes.
#
# Worked example: a block is allocated below `model.py forward` (sign FORWARD), and is still alive at the first entry of
# the backward pass. `matches` yields (rule name, mask of blocks), the strongest rule first; the block is in the masks
# of `saved` and of `forward_scratch`. `saved` comes first, so the block is an activation, with a confidence of 0.85 and
# the evidence "allocated in the forward pass, alive when the backward pass begins". If it had been freed before the
# backward pass, only `forward_scratch` would match: temporary.


class Rule(NamedTuple):
    """A rule that guesses the category of blocks, with its confidence (0 to 1) and its evidence in words.

    Only the rule `noted` has no category (None): it is for blocks that the recorder tagged, each with a category of its
    own.
    """

    name: str
    category: Category | None
    confidence: float
    because: str


# The confidences are set by hand, by what `benchmarks/blocks/categories.py` measures where tags are hidden.
RULES = (
    Rule("none", Category.UNKNOWN, 0.0, "nothing says what these blocks are"),
    Rule("noted", None, 1.0, "the recorder of workbench wrote down what each tensor is while the job ran"),
    Rule("workspace", Category.WORKSPACE, 0.8, "allocated by a library for its own use"),
    Rule("zeroed", Category.GRADIENTS, 0.8, "older than the trace, freed by zero_grad"),
    Rule("optimizer_init", Category.OPTIMIZER_STATE, 0.9, "allocated where the optimizer sets up its state"),
    Rule("optimizer_kept", Category.OPTIMIZER_STATE, 0.9, "allocated in the optimizer's step and kept after it"),
    Rule("optimizer_scratch", Category.TEMPORARY, 0.9, "allocated in the optimizer's step and freed in it"),
    Rule("optimizer_freed", Category.OPTIMIZER_STATE, 0.6, "older than the trace, freed in the optimizer's step"),
    Rule("backward_freed", Category.ACTIVATIONS, 0.6, "older than the trace, freed by the backward pass"),
    Rule("accumulated", Category.GRADIENTS, 0.95, "allocated by AccumulateGrad"),
    Rule("collective", Category.COMMUNICATION, 0.8, "allocated inside a collective"),
    Rule("unsharded", Category.PARAMETERS, 0.9, "parameters that FSDP gathered"),
    Rule("reduced", Category.GRADIENTS, 0.8, "output of FSDP's reduction, alive at the optimizer's step"),
    Rule("buckets", Category.COMMUNICATION, 0.8, "buckets in which DDP reduces gradients"),
    Rule("communication", Category.COMMUNICATION, 0.7, "allocated around a collective"),
    Rule("loaded", Category.PARAMETERS, 0.7, "allocated where modules are built, moved or loaded, and kept"),
    Rule("backward_kept", Category.GRADIENTS, 0.7, "allocated in the backward pass, alive at the optimizer's step"),
    Rule("backward_left", Category.GRADIENTS, 0.6, "older than the trace, from a backward pass, and never freed"),
    Rule("backward_scratch", Category.TEMPORARY, 0.8, "allocated in the backward pass, freed before the next step"),
    Rule("saved", Category.ACTIVATIONS, 0.85, "allocated in the forward pass, alive when the backward pass begins"),
    Rule("forward_kept", Category.ACTIVATIONS, 0.4, "allocated in a forward pass and kept; no backward pass follows"),
    Rule("forward_scratch", Category.TEMPORARY, 0.8, "allocated in the forward pass and freed in it"),
    Rule("input", Category.INPUTS, 0.6, "allocated where data are loaded"),
    Rule("built", Category.PARAMETERS, 0.6, "allocated in a constructor of the model, kept until its forward pass"),
    Rule("brief", Category.TEMPORARY, 0.6, "freed in the phase that allocated it"),
    Rule("batch", Category.INPUTS, 0.5, "allocated between the optimizer's step and the forward pass, used by it"),
    Rule("loss", Category.ACTIVATIONS, 0.6, "allocated after the model's forward, alive when the backward pass begins"),
    Rule("between", Category.TEMPORARY, 0.5, "allocated between the phases, freed before the next forward pass"),
    Rule("consumed", Category.ACTIVATIONS, 0.6, "freed by the backward pass"),
    Rule("sized_parameters", Category.PARAMETERS, 0.5, "older than the trace, as many and as large as the gradients"),
    Rule("sized_state", Category.OPTIMIZER_STATE, 0.5, "older than the trace, in more sets of the sizes of gradients"),
    Rule("standing", Category.PARAMETERS, 0.4, "older than the trace, without a stack, never freed: frozen weights"),
    Rule("replaced_parameters", Category.PARAMETERS, 0.6, "took the place of a parameter as large, or gave way to one"),
    Rule("replaced_gradients", Category.GRADIENTS, 0.6, "took the place of a gradient as large, or gave way to one"),
    Rule("replaced_state", Category.OPTIMIZER_STATE, 0.6, "took the place of state as large, or gave way to it"),
    Rule("workspace_size", Category.WORKSPACE, 0.7, "as large as cuBLAS's workspace, and never freed"),
)
NUMBER_OF = {rule.name: number for number, rule in enumerate(RULES)}
CATEGORY = np.array([-1 if rule.category is None else rule.category for rule in RULES], np.int8)
CONFIDENCE = np.array([rule.confidence for rule in RULES])

_CUBLAS_WORKSPACE_BYTES = (2 * 4096 + 8 * 16) << 10
"""The size of cuBLAS's workspace per handle and stream before Hopper, set by `CUBLAS_WORKSPACE_CONFIG=:4096:2:16:8`.

The setting means 2 buffers of 4096 KiB and 8 buffers of 16 KiB.
"""
_WEAK = [NUMBER_OF[name] for name in ("none", "between", "batch", "forward_kept", "optimizer_freed")]
"""The indexes of the least certain rules.

If one of them decided the category of a block, the category of the block that it replaced takes precedence.
"""
_INHERITED = {
    Category.PARAMETERS: NUMBER_OF["replaced_parameters"],
    Category.GRADIENTS: NUMBER_OF["replaced_gradients"],
    Category.OPTIMIZER_STATE: NUMBER_OF["replaced_state"],
}
RuleMatch = tuple[str, Mask]
"""The name of a rule, and a mask of the blocks that match it."""
SignsOfBlocks = Mapping[Sign, Mask]


def _apply_rules(trace: DeviceTrace, lives: Lifetimes) -> Column:
    """Return, for each block that ever lived, the index in `RULES` of the rule that decides its category.

    The first matching rule decides. After that, a block of uncertain category may get the category of a block that it
    replaced, or a category that follows from its size.
    """
    signs = stack_signs(trace.snapshot)
    rule = np.zeros(len(lives.born), np.int8)
    # Backwards, so that the weightier rules overwrite the others.
    for name, mask in reversed(list(matches(trace, lives, signs))):
        rule[mask] = NUMBER_OF[name]
    phases = PhaseTimeline(phase_of_entries(trace, signs))
    chains = Replacements(lives, phases, CATEGORY[rule], np.isin(rule, _WEAK))
    inherit(rule, chains)
    _find_updated_parameters(lives, phases, rule)
    # Sizes may tell what a chain is that no rule knows, so that it inherits afterwards.
    _match_sizes_of_older_blocks(lives, rule, chains)
    inherit(rule, chains)
    # As long as no optimizer state is known, unexplained old blocks may just be that: then they stay unknown.
    if {Category.GRADIENTS, Category.OPTIMIZER_STATE} <= set(CATEGORY[rule].tolist()):
        always_there = (lives.born == BEFORE) & (lives.died == len(trace)) & (lives.stack == 0)
        rule[always_there & (rule == 0)] = NUMBER_OF["standing"]
    return rule


def matches(trace: DeviceTrace, lives: Lifetimes, signs: Mapping[Sign, Mask]) -> Iterator[RuleMatch]:
    """Yield each rule's name and a mask of the blocks that match it, the strongest rule first.

    `signs` has, for each kind of code (`Sign`), a mask of the stacks with a frame of this kind.
    """
    made = {sign: flags[lives.stack] & ~lives.freed_stack for sign, flags in signs.items()}
    freed = {sign: flags[lives.stack] & lives.freed_stack for sign, flags in signs.items()}
    phases = PhaseTimeline(phase_of_entries(trace, signs))
    # First, as the first operation that needs a workspace allocates it, in whatever phase.
    yield "workspace", made[Sign.WORKSPACE]
    # Recordings without native frames show the line of the operation that came first.
    yield "workspace_size", (lives.size == _CUBLAS_WORKSPACE_BYTES) & (lives.died == phases.count)
    yield "zeroed", freed[Sign.ZERO_GRAD]
    yield from _optimizer_rules(trace, lives, made, phases)
    yield "backward_freed", freed[Sign.ENGINE] | freed[Sign.BACKWARD]
    # What follows runs inside the passes, so it goes before their general rules: gradients, collectives, FSDP, DDP.
    yield "accumulated", made[Sign.ACCUMULATE]
    yield "collective", made[Sign.COLLECTIVE]
    yield "unsharded", made[Sign.UNSHARDED]
    yield "reduced", made[Sign.REDUCED] & _lasts_until(lives, phases, Phase.OPTIMIZER)
    yield "buckets", made[Sign.BUCKETS]
    yield "communication", made[Sign.COMMUNICATION]
    # Not brief: moving a module to the device makes copies that are freed at once.
    yield "loaded", made[Sign.PARAMETERS] & ~_is_brief(lives, phases)
    yield from _pass_rules(lives, made, phases)
    yield from _lifetime_rules(lives, made, phases)


def _optimizer_rules(
    trace: DeviceTrace, lives: Lifetimes, made: SignsOfBlocks, phases: PhaseTimeline
) -> Iterator[RuleMatch]:
    """Yield the rules for blocks that the optimizer's step allocates or frees, each with a mask of the matching blocks.

    Rules that use PyTorch's annotation `Optimizer.step` come before rules that use stacks. `made` has, for each sign (a
    kind of code, such as the optimizer), a mask of the blocks whose allocating stack shows it.
    """
    optimizer = annotated_windows(trace, "Optimizer.step")
    inside = optimizer.contains(lives.born)
    next_pass = np.minimum(phases.next(Phase.FORWARD, lives.born), phases.next(Phase.BACKWARD, lives.born))
    yield "optimizer_init", made[Sign.OPTIMIZER_INIT]
    # Adam allocates its moments in the first step and keeps them; foreach kernels make temporaries that go at once.
    yield "optimizer_kept", inside & (lives.died >= optimizer.end_after(lives.born))
    yield "optimizer_scratch", inside
    # A trace that begins late sees only that something old is freed in a step: state that is replaced.
    yield "optimizer_freed", lives.freed_stack & optimizer.contains(lives.died)
    yield "optimizer_kept", made[Sign.OPTIMIZER] & ((lives.died > next_pass) | (lives.died == len(trace)))
    yield "optimizer_scratch", made[Sign.OPTIMIZER]


def _pass_rules(lives: Lifetimes, made: SignsOfBlocks, phases: PhaseTimeline) -> Iterator[RuleMatch]:
    """Yield the rules for blocks of the forward and backward passes, each with a mask of the matching blocks.

    Blocks that are alive when the backward pass begins were saved for it. `made` has, for each sign (a kind of code),
    a mask of the blocks whose allocating stack shows it.
    """
    in_backward = phases.at(lives.born) == Phase.BACKWARD
    never_freed = (lives.born == BEFORE) & (lives.died == phases.count)
    yield "backward_left", never_freed & (made[Sign.ENGINE] | made[Sign.BACKWARD])
    yield "backward_kept", in_backward & _lasts_until(lives, phases, Phase.OPTIMIZER)
    # From here on order alone separates kept and freed: the rule before took those that last.
    yield "backward_scratch", in_backward
    yield "saved", made[Sign.FORWARD] & _lasts_until(lives, phases, Phase.BACKWARD)
    yield "forward_kept", made[Sign.FORWARD] & (lives.died == phases.count)
    yield "forward_scratch", made[Sign.FORWARD]


def _lifetime_rules(lives: Lifetimes, made: SignsOfBlocks, phases: PhaseTimeline) -> Iterator[RuleMatch]:
    """Yield the rules that use only the time of a block's allocation or free, each with a mask of the matching blocks.

    `made` has, for each sign (a kind of code), a mask of the blocks whose allocating stack shows it.
    """
    new = lives.born != BEFORE
    previous = phases.last(lives.born)
    forward = np.minimum(phases.next(Phase.FORWARD, lives.born), phases.count)
    freed = lives.died < phases.count
    yield "input", made[Sign.INPUT]
    yield "built", made[Sign.BUILT] & ~_is_brief(lives, phases)
    yield "brief", _is_brief(lives, phases)
    yield "batch", new & (previous != Phase.FORWARD) & _lasts_until(lives, phases, Phase.FORWARD) & freed
    in_loss = new & (previous == Phase.FORWARD) & (lives.died < forward)
    yield "loss", in_loss & _lasts_until(lives, phases, Phase.BACKWARD)
    yield "between", new & (previous != Phase.NONE) & (lives.died < forward)
    yield "consumed", freed & (phases.at(lives.died) == Phase.BACKWARD) & ~lives.freed_stack


def _lasts_until(lives: Lifetimes, phases: PhaseTimeline, phase: Phase) -> Mask:
    """Return a mask of the blocks that are still alive when a training phase next begins after their allocation.

    The value is False for a block if the phase does not occur again.
    """
    return lives.died >= phases.next(phase, lives.born)


def _is_brief(lives: Lifetimes, phases: PhaseTimeline) -> Mask:
    new = (lives.born != BEFORE) & (lives.died < phases.count) & (phases.last(lives.born) != Phase.NONE)
    same_span = phases.span(lives.born) == phases.span(np.minimum(lives.died, phases.count - 1))
    brief: Mask = new & same_span
    return brief


def inherit(rule: Column, chains: Replacements) -> None:
    """Let blocks of uncertain category take the category of a block that they replaced, or that replaced them.

    `rule` has the index in `RULES` of the rule that decided each block's category; it is changed in place. `chains`
    are the replacements, such as new weights in the place of old ones.
    """
    inherited = chains.spread(CATEGORY[rule], np.isin(rule, _WEAK))
    for category, number in _INHERITED.items():
        rule[inherited == category] = number


def _find_updated_parameters(lives: Lifetimes, phases: PhaseTimeline, rule: Column) -> None:
    """Find new parameters among the blocks that the optimizer's step allocated and that stay alive.

    An optimizer that writes `p.data = p - lr * m` allocates new parameters beside new state. `rule`, the index in
    `RULES` of the rule that decided each block's category, is changed in place.
    """
    kept = rule == NUMBER_OF["optimizer_kept"]
    updates = Replacements(lives, phases, CATEGORY[rule], kept, at_once=True)
    inherited = updates.spread(CATEGORY[rule], kept)
    rule[kept & (inherited == Category.PARAMETERS)] = NUMBER_OF["replaced_parameters"]


def _match_sizes_of_older_blocks(lives: Lifetimes, rule: Column, chains: Replacements) -> None:
    """Guess the category of unexplained blocks that are older than the trace, from their sizes.

    For each gradient there is a parameter of the same size and, with Adam, two moments. `rule`, the index in `RULES` of
    the rule that decided each block's category, is changed in place. A block that replaced an older one (`chains`) also
    counts as old if its category is uncertain. Example: gradients of 4, 4 and 8 MiB are known. Of the old blocks of 4
    MiB the first two are taken for parameters and the next four for moments; of those of 8 MiB the first is taken for a
    parameter and the next two for moments. If blocks of optimizer state of a size are known, no moments are guessed for
    this size. If these blocks outnumber the gradients of this size, their number counts instead (FSDP may reduce many
    gradients in one buffer).
    """
    # What took the place of another block counts like a block that was always there.
    was_there = ((lives.born == BEFORE) & (rule == 0)) | (chains.has_older & np.isin(rule, _WEAK))
    older = np.flatnonzero(was_there & (lives.died == lives.died.max(initial=0)))
    older = older[np.argsort(lives.size[older], kind="stable")]
    # Sorted by size, so that the n-th of its size is its position less that of the first one.
    size = lives.size[older]
    nth_of_its_size = np.arange(len(size)) - np.searchsorted(size, size)
    gradients = _count_by_size(lives, size, CATEGORY[rule] == Category.GRADIENTS)
    states = _count_by_size(lives, size, CATEGORY[rule] == Category.OPTIMIZER_STATE)
    expected = np.maximum(gradients, states)
    rule[older[nth_of_its_size < expected]] = NUMBER_OF["sized_parameters"]
    moments = (nth_of_its_size >= expected) & (nth_of_its_size < 3 * expected) & (states == 0)
    rule[older[moments]] = NUMBER_OF["sized_state"]


def _count_by_size(lives: Lifetimes, sizes: Integers, selected: Mask) -> Integers:
    """Return, for each of `sizes`, how many `selected` blocks of this size are alive when most of the bytes are.

    This time is the trace entry after which the bytes of all selected blocks together are highest.
    """
    rows = np.flatnonzero(selected)
    change = np.zeros(int(lives.died.max(initial=0)) + 2, np.int64)
    # Shifted by one: a block of entry -1 is alive before the first entry.
    np.add.at(change, lives.born[rows] + 1, lives.size[rows])
    np.subtract.at(change, lives.died[rows] + 1, lives.size[rows])
    fullest = int(np.cumsum(change).argmax()) - 1
    alive = rows[(lives.born[rows] <= fullest) & (lives.died[rows] > fullest)]
    known, counts = np.unique(lives.size[alive], return_counts=True)
    if not len(known):
        return np.zeros(len(sizes), np.int64)
    position = np.minimum(np.searchsorted(known, sizes), len(known) - 1)
    return np.where(known[position] == sizes, counts[position], 0)


@dataclass(frozen=True)
class Guess:
    """The category of each block, and the index in `RULES` of the rule that decided it; one row per row of `Lifetimes`.

    `exact` is True if the recorder tagged every block; then no category is a guess.
    """

    category: Column
    rule: Column
    exact: bool

    @cached_property
    def confidence(self) -> Floats:
        """How certain each block's category is, from 0 to 1."""
        return np.ones(len(self.rule)) if self.exact else CONFIDENCE[self.rule]

    def sums(self, lives: Lifetimes, rows: Integers) -> dict[str, int]:
        """Return {category name: bytes of some blocks}, with all categories; `rows` are the blocks' rows in `lives`."""
        totals = np.zeros(len(CATEGORIES), np.int64)
        # Unbuffered, and exact where np.bincount with weights would sum in floating point.
        np.add.at(totals, self.category[rows], lives.size[rows])
        return {name: int(total) for name, total in zip(CATEGORIES, totals, strict=True)}

    def mean_confidence(self, lives: Lifetimes, rows: Integers) -> float:
        """Return the mean confidence of the categories of some blocks, weighted by their bytes."""
        weights = lives.size[rows].astype(np.float64)
        return round(float(weights @ self.confidence[rows] / weights.sum()), 3) if weights.sum() else 1.0

    def bases(self, lives: Lifetimes, rows: Integers) -> list[CategoryBasis]:
        """Return, for each rule, the number and the bytes of the blocks that it categorised, the most bytes first.

        Only the blocks at `rows` of `lives` count. Rules that decided no block are left out.
        """
        total = np.bincount(self.rule[rows], lives.size[rows], len(RULES)).astype(np.int64)
        count = np.bincount(self.rule[rows], minlength=len(RULES))
        order = [number for number in np.argsort(-total, kind="stable").tolist() if count[number]]
        return [basis(number, int(total[number]), int(count[number])) for number in order]


def basis(number: int, total: int, blocks: int) -> CategoryBasis:
    """Return a `CategoryBasis` for rule `number` of `RULES`, which decided `blocks` blocks of `total` bytes."""
    rule = RULES[number]
    return CategoryBasis(
        rule=rule.name,
        category="" if rule.category is None else CATEGORIES[rule.category],
        because=rule.because,
        confidence=rule.confidence,
        bytes=total,
        blocks=blocks,
    )


def categorise(replay: Replay) -> Guess:
    lives, trace = replay.lifetimes, replay.trace
    tagged = lives.category != UNTAGGED
    exact = bool(trace.snapshot.recorder.get("exact")) or (bool(len(tagged)) and bool(tagged.all()))
    if trace.is_digested:
        return Guess(trace.lifetime("guess"), trace.lifetime("rule"), exact)
    rule = np.zeros(len(tagged), np.int8) if exact else _apply_rules(trace, lives)
    rule[tagged] = NUMBER_OF["noted"]
    category = CATEGORY[rule]
    category[tagged] = lives.category[tagged]
    return Guess(category, rule, exact)
