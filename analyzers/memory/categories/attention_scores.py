"""Find the tensors of attention without a fused kernel: its scores, which grow with the square of the sequence.

Worked example, a written-out attention: a batched matrix product makes the scores, they are divided, masked and go
through a softmax, whose result is cast to bfloat16 and saved. The stack of the softmax shows that these are scores; the
other tensors are found by their size and by being allocated a few allocations earlier or later.
"""

import re

import numpy as np

from analyzers.columns import Integers, Mask
from analyzers.memory.categories.categorise import Guess
from analyzers.memory.categories.stack_signs import stacks_showing
from analyzers.memory.reading.schema import Action, Category
from analyzers.memory.replay.lifetimes import BEFORE, Replay

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


def stacks_of_fallback(replay: Replay, among: Integers | None = None) -> Mask:
    """Return a mask of the stacks in the math kernel; with `among`, only of the stacks with these numbers."""
    snapshot = replay.trace.snapshot
    return stacks_showing(snapshot, [MATH], among)[0]


def score_blocks(replay: Replay, guess: Guess) -> Mask:
    """Return a mask of the blocks whose size is batch x heads x the square of the sequence, as far as recognised.

    Maxima and sums of the rows of scores, which a softmax keeps, are left out: they grow with the sequence itself.
    """
    stacks = stacks_of_scores(replay) | stacks_of_fallback(replay)
    selected = blocks_of_passes(replay, guess, stacks)
    size = replay.lifetimes.size
    selected &= size >= _ROW_SHARE * size[selected & (guess.category == Category.ACTIVATIONS)].max(initial=0)
    selected |= scratch_as_large(replay, guess, selected) | score_neighbours(replay, guess, selected)
    return selected


def score_neighbours(replay: Replay, guess: Guess, selected: Mask) -> Mask:
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


def scratch_as_large(replay: Replay, guess: Guess, selected: Mask) -> Mask:
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
