"""Find the tensors of attention without a fused kernel: its scores, which grow with the square of the sequence.

Worked example, a written-out attention: a batched matrix product makes the scores, they are divided, masked and go
through a softmax, whose result is cast to bfloat16 and saved. The stack of the softmax shows that these are scores; the
other tensors are found by their size and by being allocated a few allocations earlier or later.
"""

import re
from collections.abc import Callable

import msgspec
import numpy as np

from analyzers.columns import Integers, Mask
from analyzers.memory.categorise import Guess
from analyzers.memory.lifetimes import BEFORE, Lifetimes, Replay
from analyzers.memory.model import UnusualKind, UnusualUse
from analyzers.memory.phases import (
    Phase,
    PhaseTimeline,
    StepSpan,
    stacks_showing,
    whole_steps,
)
from analyzers.memory.scenarios import Scenario
from analyzers.memory.snapshot import Action, Category
from analyzers.memory.stacks import stack_lines

SOFTMAX = re.compile(r"(?<!log)(?<!log_)[sS]oftmax\w*(::call\(|$|\(|\.py \w+$)")
"""Matches a frame `file function` that computes a softmax: a function or module of the user, or PyTorch's operator."""
ATTENTION = re.compile(r"(?i)(attention|attn|sdpa)\w*(\.py \w+$|$)")
"""Matches a frame `file function` of a module or function for attention."""
_FALLBACK = re.compile(r" (at::|aten::)\S*scaled_dot_product_attention")
"""Matches PyTorch's own attention without a fused kernel, which only its arguments can change."""
MATH = re.compile(r" (at::|aten::)\S*_scaled_dot_product_attention_math\b(?!_)")
"""Matches PyTorch's attention where it takes its math kernel, which is not fused."""
_PRODUCT = re.compile(r" (at::_ops::|aten::)(baddbmm|bmm)(::|$)")
"""Matches a batched matrix product, of which attention written out makes its scores."""
_BEFORE_SOFTMAX = 8
"""How many allocations before that of a softmax its scores are looked for: scaling, mask and dropout lie between."""
_AFTER_SOFTMAX = 4
_BEFORE_FREE, _AFTER_FREE = 6, 6
"""How many allocations after that of a saved softmax, and around its free, tensors that belong to it are looked for."""
_SCALAR_BYTES = 64
"""The largest size in bytes of a block that does not count in these distances: a factor or a value of the mask."""
_ROW_SHARE = 1 / 8
"""The smallest part of the largest scores that counts as scores; maxima and sums of rows are far smaller."""


def stacks_of_scores(replay: Replay, among: Integers | None = None) -> Mask:
    """Return a mask of the stacks that allocate attention scores; with `among`, only of the stacks with these numbers.

    Such a stack shows softmax and attention, because a softmax of a loss or of a router is not attention. Where no
    name speaks of attention, the softmax must follow a batched matrix product of its own size.
    """
    snapshot = replay.trace.snapshot
    softmax, attention, fallback = stacks_showing(snapshot, (SOFTMAX, ATTENTION, _FALLBACK), among)
    named: Mask = softmax & attention & ~fallback
    return named | _after_product(replay, softmax & ~attention & ~fallback)


def _after_product(replay: Replay, softmax: Mask) -> Mask:
    """Return a mask of those stacks in `softmax` that allocate just after a batched matrix product of the same size.

    A softmax in float32 of scores in 16 bits is twice as large. Scalars in between do not count.
    """
    trace, after = replay.trace, np.zeros_like(softmax)
    if not softmax.any():
        return after
    allocations = trace.where(Action.ALLOC)
    allocations = allocations[trace.entry("size")[allocations] > _SCALAR_BYTES]
    stack, size = trace.entry("stack")[allocations], trace.entry("size")[allocations]
    at = np.flatnonzero(softmax[stack])
    for back in range(1, _BEFORE_SOFTMAX + 1):
        at = at[at >= back]
        alike = at[(size[at] == size[at - back]) | (size[at] == 2 * size[at - back])]
        [product] = stacks_showing(trace.snapshot, [_PRODUCT], stack[alike - back])
        after[stack[alike[product[stack[alike - back]]]]] = True
    return after


def _stacks_of_fallback(replay: Replay, among: Integers | None = None) -> Mask:
    snapshot = replay.trace.snapshot
    return stacks_showing(snapshot, [MATH], among)[0]


def score_blocks(replay: Replay, guess: Guess) -> Mask:
    """Return a mask of the blocks whose size is batch x heads x the square of the sequence, as far as recognised.

    Maxima and sums of the rows of scores, which a softmax keeps, are left out: they grow with the sequence itself.
    """
    stacks = stacks_of_scores(replay) | _stacks_of_fallback(replay)
    selected = blocks_of_passes(replay, guess, stacks)
    size = replay.lifetimes.size
    selected &= size >= _ROW_SHARE * size[selected & (guess.category == Category.ACTIVATIONS)].max(initial=0)
    selected |= _scratch_as_large(replay, guess, selected) | _score_neighbours(replay, guess, selected)
    return selected


def _score_neighbours(replay: Replay, guess: Guess, selected: Mask) -> Mask:
    """Return a mask of the blocks with the size of a selected activation, or half of it, that belong to it.

    They are allocated just before it (product, scaling and mask) or just after it (dropout, and a copy in 16 bits), or
    in the backward pass around the time when it is freed (gradients). Other activations must show attention in their
    stack, as the next layer may save a tensor that is as large.
    """
    lives, found = replay.lifetimes, np.zeros(len(selected), bool)
    saved = np.flatnonzero(selected & (guess.category == Category.ACTIVATIONS) & (lives.born != BEFORE))
    if not len(saved):
        return found
    [attention] = stacks_showing(replay.trace.snapshot, [ATTENTION])
    kept = (guess.category == Category.ACTIVATIONS) & attention[lives.stack]
    of_pass = kept | np.isin(guess.category, (Category.TEMPORARY, Category.UNKNOWN))
    recorded = np.flatnonzero((lives.born != BEFORE) & (lives.size > _SCALAR_BYTES))
    order = recorded[np.argsort(lives.born[recorded], kind="stable")]
    born = lives.born[order]
    forward, backward = np.searchsorted(born, lives.born[saved]), np.searchsorted(born, lives.died[saved])
    for places, back, ahead in ((forward, _BEFORE_SOFTMAX, _AFTER_SOFTMAX), (backward, _BEFORE_FREE, _AFTER_FREE)):
        for offset in range(-back, ahead + 1):
            inside = (places + offset >= 0) & (places + offset < len(order))
            rows, of = order[places[inside] + offset], saved[inside]
            alike = (lives.size[rows] == lives.size[of]) | (2 * lives.size[rows] == lives.size[of])
            found[rows[alike]] = True
    found &= of_pass
    return found


def _scratch_as_large(replay: Replay, guess: Guess, selected: Mask) -> Mask:
    """Return a mask of the temporary tensors that have the size of a selected activation.

    They are what the selected tensors are computed from, and their gradients. Sizes that other activations have, too,
    are left out.
    """
    lives, saved = replay.lifetimes, guess.category == Category.ACTIVATIONS
    sizes = np.setdiff1d(lives.size[selected & saved], lives.size[saved & ~selected])
    brief = np.isin(guess.category, (Category.TEMPORARY, Category.UNKNOWN)) & (lives.born != BEFORE)
    alike: Mask = brief & np.isin(lives.size, sizes)
    return alike


def blocks_of_passes(replay: Replay, guess: Guess, stacks: Mask) -> Mask:
    """Return a mask of the blocks that these stacks allocated for a forward or backward pass, not weights or buffers.

    `stacks` is a mask of the stacks of the snapshot.
    """
    lives = replay.lifetimes
    selected: Mask = stacks[lives.stack] & ~lives.freed_stack
    return selected & np.isin(guess.category, (Category.ACTIVATIONS, Category.TEMPORARY))


_LOSS_FUNCTION = re.compile(
    r"(cross_entropy|log_softmax|nll_loss|_loss)\w*$|(at::_ops|aten)::_?(cross_entropy_loss|log_softmax|nll_loss)"
)
_DROPOUT = re.compile(r" (at::|aten::)\S*dropout")
LOSS_PIECES = 8
"""The number of pieces that is assumed in the estimate of what computing the loss in pieces would save."""
_BYTES_AT_LEAST, _PEAK_SHARE_AT_LEAST, _LOSS_SHARE_AT_LEAST, _SCORES_SHARE_AT_LEAST = 1 << 20, 0.05, 0.25, 0.1
_UNUSED_SHARE_AT_LEAST = 0.5
"""The smallest share of the activations at the peak that no backward pass used, from which on they are reported."""
_KEPT_STEPS = 2
"""An activation counts as kept if it is still alive this many steps after its own step.

Its own step may end late, and one more step may log it.
"""

StacksShowing = Callable[[Replay, Integers | None], Mask]
"""A function that returns a mask of stacks in the snapshot of a replay.

If numbers of stacks are given, it need only look at these: a snapshot may have a million others.
"""


def unusual_uses(replay: Replay, guess: Guess) -> list[UnusualUse]:
    """Return the unusual uses of memory that are a considerable part of the peak, at most one of each kind."""
    steps = whole_steps(replay.trace)
    uses = [
        late_state(replay, guess, steps),
        loss(replay, guess),
        attention_scores(replay, guess),
        _fallback_scores(replay, guess),
        kept(replay, guess, steps),
        unused_graph(replay, guess),
    ]
    enough = max(_BYTES_AT_LEAST, _PEAK_SHARE_AT_LEAST * replay.peak[0])
    return [use for use in uses if use and use.bytes >= enough]


def late_state(replay: Replay, guess: Guess, steps: list[StepSpan]) -> UnusualUse | None:
    """Return how much the optimizer's state grew in the first step that allocated some; None if most existed before.

    The state alive before this step's first allocation of state is compared with the state alive at the end of the
    step. Counting allocations would be wrong: an optimizer that writes `state["m"] = beta * state["m"] + ...` frees as
    much as it allocates, and a script may move state away and back. State that was allocated before the first pass, for
    example in the optimizer's constructor, is not late.
    """
    lives, last = replay.lifetimes, len(replay.trace) - 1
    state = np.flatnonzero(guess.category == Category.OPTIMIZER_STATE)
    new = state[lives.born[state] > _first_pass(lives, guess)]
    if not len(new):
        return None
    begin = int(lives.born[new].min())
    end = next((step.end - 1 for step in steps if step.end and step.start <= begin < step.end), last)
    present = new[(lives.born[new] <= end) & (lives.died[new] > end)]
    before = _live_bytes_of(lives, state, begin - 1) + _replaced_bytes(replay, guess, present)
    after = _live_bytes_of(lives, state, end)
    # State that mostly existed before the step: then what it added is a detail.
    if after - before <= before:
        return None
    return UnusualUse(
        kind=UnusualKind.LATE_STATE,
        bytes=after - before,
        frees_bytes=0,
        step=_step_of_entry(steps, begin),
        frames=_largest_stack(replay, present),
    )


def _first_pass(lives: Lifetimes, guess: Guess) -> int:
    of_pass = np.isin(guess.category, (Category.ACTIVATIONS, Category.GRADIENTS)) & (lives.born != BEFORE)
    return int(lives.born[of_pass].min()) if of_pass.any() else BEFORE


def _live_bytes_of(lives: Lifetimes, rows: Integers, entry: int) -> int:
    return int(lives.size[rows[(lives.born[rows] <= entry) & (lives.died[rows] > entry)]].sum())


def _replaced_bytes(replay: Replay, guess: Guess, new: Integers) -> int:
    """Return how many bytes of new optimizer state replaced older blocks that were not known to be optimizer state.

    `new` are the rows in `Lifetimes` of the new state. A replaced block is older than the trace, has the size of a
    new block, and is freed after the first allocation of new state.
    """
    lives = replay.lifetimes
    if not len(new):
        return 0
    alike = np.isin(lives.stack, lives.stack[new]) & (lives.born != BEFORE)
    gone = (lives.born == BEFORE) & (lives.died < len(replay.trace)) & (lives.died > lives.born[alike].min())
    gone &= guess.category != Category.OPTIMIZER_STATE
    sizes, counts = np.unique(lives.size[new], return_counts=True)
    before = np.array([np.count_nonzero(lives.size[gone] == size) for size in sizes])
    return int((sizes * np.minimum(counts, before)).sum())


def _step_of_entry(steps: list[StepSpan], entry: int) -> int | None:
    return next((step.number for step in steps if step.start <= entry < (step.end or 0)), None)


def loss(replay: Replay, guess: Guess) -> UnusualUse | None:
    """Return the part of the peak that loss functions allocated; None if it is less than a quarter of the peak."""
    rows = _blocks_at_peak(replay, guess, stacks_of_loss)
    total = int(replay.lifetimes.size[rows].sum())
    if total < _LOSS_SHARE_AT_LEAST * replay.peak[0]:
        return None
    of_loss = blocks_of_passes(replay, guess, stacks_of_loss(replay))
    # A fresh scenario: this one is changed in place.
    frees = _saving_in_pieces(Scenario.recorded(replay, guess), of_loss)
    return UnusualUse(
        kind=UnusualKind.LOSS, bytes=total, frees_bytes=frees, step=None, frames=_largest_stack(replay, rows)
    )


def stacks_of_loss(replay: Replay, among: Integers | None = None) -> Mask:
    snapshot = replay.trace.snapshot
    return stacks_showing(snapshot, [_LOSS_FUNCTION], among)[0]


def attention_scores(replay: Replay, guess: Guess) -> UnusualUse | None:
    """Return the part of the peak made by a softmax inside of attention; None if it is less than a tenth.

    Fused attention has no such tensors (Dao et al. 2022, FlashAttention, arXiv:2205.14135). Their size is batch x heads
    x the square of the sequence.
    """
    return _scores_of(replay, guess, stacks_of_scores, UnusualKind.ATTENTION_SCORES)


def _fallback_scores(replay: Replay, guess: Guess) -> UnusualUse | None:
    """Return the part of the peak that PyTorch's math kernel of attention made; None if it is less than a tenth."""
    use = _scores_of(replay, guess, _stacks_of_fallback, UnusualKind.ATTENTION_FALLBACK)
    if use is None:
        return None
    snapshot = replay.trace.snapshot
    fallback, dropout = stacks_showing(snapshot, (MATH, _DROPOUT))
    return msgspec.structs.replace(use, with_dropout=bool((fallback & dropout).any()))


def _scores_of(replay: Replay, guess: Guess, stacks: StacksShowing, kind: UnusualKind) -> UnusualUse | None:
    """Return the part of the peak that the stacks selected by `stacks` allocated; None if it is less than a tenth.

    Tensors of the same sizes next to them count too: copies in 16 bits, and what the scores are computed from.
    """
    lives = replay.lifetimes
    rows = _blocks_at_peak(replay, guess, stacks)
    if int(lives.size[rows].sum()) < _SCORES_SHARE_AT_LEAST * replay.peak[0]:
        return None
    selected = blocks_of_passes(replay, guess, stacks(replay, None))
    selected |= _scratch_as_large(replay, guess, selected) | _score_neighbours(replay, guess, selected)
    at_peak = lives.alive(replay.peak[1])
    # What the forward pass saved names the line of the attention; a gradient would name that of the backward pass.
    saved = rows[guess.category[rows] == Category.ACTIVATIONS]
    scenario = Scenario.recorded(replay, guess)
    scenario.size[selected] = 0
    return UnusualUse(
        kind=kind,
        bytes=int(lives.size[at_peak[selected[at_peak]]].sum()),
        frees_bytes=replay.peak[0] - int(scenario.live_bytes().max()),
        step=None,
        frames=_largest_stack(replay, saved if len(saved) else rows),
    )


def _blocks_at_peak(replay: Replay, guess: Guess, stacks: StacksShowing) -> Integers:
    """Return the rows in `Lifetimes` of the blocks at the peak that `blocks_of_passes` selects."""
    lives = replay.lifetimes
    rows = lives.alive(replay.peak[1])
    selected = blocks_of_passes(replay, guess, stacks(replay, lives.stack[rows]))
    return rows[selected[rows]]


def _saving_in_pieces(scenario: Scenario, selected: Mask) -> int:
    """Return by how many bytes the peak falls if the selected blocks are computed in `LOSS_PIECES` pieces in turn.

    The sizes of these blocks in the scenario are changed in place.
    """
    scenario.size[selected] //= LOSS_PIECES
    return scenario.replay.peak[0] - int(scenario.live_bytes().max())


def kept(replay: Replay, guess: Guess, steps: list[StepSpan]) -> UnusualUse | None:
    """Return the activations and temporary tensors that are still alive at the end, steps after their allocation.

    Nothing uses them any more. The result is None if there are none. On a CPU some frees are not recorded, so temporary
    tensors are left out.
    """
    if len(steps) <= _KEPT_STEPS:
        return None
    lives = replay.lifetimes
    on_cpu = replay.trace.snapshot.made_up_segments
    kinds = (Category.ACTIVATIONS,) if on_cpu else (Category.ACTIVATIONS, Category.TEMPORARY)
    stays = np.isin(guess.category, kinds) & (lives.died == len(replay.trace)) & (lives.born >= steps[0].start)
    rows = np.flatnonzero(stays & (lives.born < steps[-_KEPT_STEPS].start))
    if not len(rows):
        return None
    total = int(lives.size[rows].sum())
    return UnusualUse(
        kind=UnusualKind.KEPT,
        bytes=total,
        frees_bytes=total,
        step=_step_of_entry(steps, int(lives.born[rows].min())),
        frames=_largest_stack(replay, rows),
    )


def unused_graph(replay: Replay, guess: Guess) -> UnusualUse | None:
    """Return the activations at the peak that were freed before any backward pass came; None if they are below half.

    An evaluation without `torch.no_grad()` saves them for nothing. Only recorded categories show that a tensor was
    saved for a backward pass. After a failed request all is freed, so such frees show nothing, nor does a trace in
    which no backward pass is recognised.
    """
    trace, lives = replay.trace, replay.lifetimes
    if not guess.exact or len(trace.where(Action.OOM)):
        return None
    timeline = PhaseTimeline.of(trace)
    if not (timeline.kind == Phase.BACKWARD).any():
        return None
    saved = np.flatnonzero((guess.category == Category.ACTIVATIONS) & (lives.born != BEFORE))
    freed = lives.died[saved] < len(trace)
    unused = saved[freed & (timeline.next(Phase.BACKWARD, lives.born[saved]) > lives.died[saved])]
    at_peak, unused_at_peak = (np.intersect1d(lives.alive(replay.peak[1]), rows) for rows in (saved, unused))
    total = int(lives.size[unused_at_peak].sum())
    if not total or total < _UNUSED_SHARE_AT_LEAST * int(lives.size[at_peak].sum()):
        return None
    scenario = Scenario.recorded(replay, guess)
    # Without a graph each tensor is freed by the next operation.
    scenario.size[unused] = 0
    return UnusualUse(
        kind=UnusualKind.UNUSED_GRAPH,
        bytes=total,
        frees_bytes=replay.peak[0] - int(scenario.live_bytes().max()),
        step=None,
        frames=_largest_stack(replay, unused_at_peak),
    )


def _largest_stack(replay: Replay, rows: Integers) -> list[str]:
    stacks, inverse = np.unique(replay.lifetimes.stack[rows], return_inverse=True)
    largest = int(stacks[np.bincount(inverse, replay.lifetimes.size[rows]).argmax()]) if len(rows) else 0
    return stack_lines(replay.trace.snapshot, largest)
