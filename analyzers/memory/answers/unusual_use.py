"""What stands out without being a failure: optimizer state that comes late, the loss, activations kept over steps."""

import re

import numpy as np

from analyzers.columns import Integers, Mask
from analyzers.memory.answers.scenario import Scenario
from analyzers.memory.answers.stacks import stack_lines
from analyzers.memory.categories.categorise import Guess
from analyzers.memory.categories.stack_signs import frame_texts, stacks_showing
from analyzers.memory.model import UnusualKind, UnusualUse
from analyzers.memory.reading.schema import Category
from analyzers.memory.replay.lifetimes import BEFORE, Replay
from analyzers.memory.replay.phases import StepSpan, whole_steps

LOSS_FUNCTION = re.compile(r"(cross_entropy|log_softmax|nll_loss|_loss)\w*$")
LOSS_PIECES = 8
"""The saving is estimated for a loss that is computed in so many pieces."""
BYTES_AT_LEAST, PEAK_SHARE_AT_LEAST, LOSS_SHARE_AT_LEAST = 1 << 20, 0.05, 0.25
KEPT_STEPS = 2
"""So many later steps prove that an activation is kept: its own step may end late, and one more may log it."""


def unusual_uses(replay: Replay, guess: Guess) -> list[UnusualUse]:
    """Return each kind at most once, and only where it is a good part of the peak."""
    steps = whole_steps(replay.trace)
    uses = [late_state(replay, guess, steps), loss(replay, guess), kept(replay, guess, steps)]
    enough = max(BYTES_AT_LEAST, PEAK_SHARE_AT_LEAST * replay.peak[0])
    return [use for use in uses if use and use.bytes >= enough]


def late_state(replay: Replay, guess: Guess, steps: list[StepSpan]) -> UnusualUse | None:
    """Return the optimizer's state where the trace shows that it was allocated and stayed; else None."""
    lives = replay.lifetimes
    state = guess.category == Category.OPTIMIZER_STATE
    new = np.flatnonzero(state & (lives.born != BEFORE) & (lives.died == len(replay.trace)))
    older_bytes, new_bytes = int(lives.size[state & (lives.born == BEFORE)].sum()), int(lives.size[new].sum())
    new_bytes -= replaced_bytes(replay, new)
    # State that is mostly older than the trace existed before: then the new one is a detail.
    if not len(new) or older_bytes >= new_bytes:
        return None
    return UnusualUse(
        kind=UnusualKind.LATE_STATE,
        bytes=new_bytes,
        frees_bytes=0,
        step=step_of_entry(steps, int(lives.born[new].min())),
        frames=largest_stack(replay, new),
    )


def replaced_bytes(replay: Replay, new: Integers) -> int:
    """Return how many bytes of the new blocks took the place of blocks that are older than the trace.

    An optimizer that writes `state["m"] = beta * state["m"] + ...` allocates its state in each step and frees the old
    one. The old one of before the trace has the same sizes, and goes after the first new one came.
    """
    lives = replay.lifetimes
    if not len(new):
        return 0
    # Of steps between, the state is gone as well: all of it comes from the same lines.
    alike = np.isin(lives.stack, lives.stack[new]) & (lives.born != BEFORE)
    gone = (lives.born == BEFORE) & (lives.died < len(replay.trace)) & (lives.died > lives.born[alike].min())
    sizes, counts = np.unique(lives.size[new], return_counts=True)
    before = np.array([np.count_nonzero(lives.size[gone] == size) for size in sizes])
    return int((sizes * np.minimum(counts, before)).sum())


def step_of_entry(steps: list[StepSpan], entry: int) -> int | None:
    """Return the whole step that an entry belongs to."""
    return next((step.number for step in steps if step.start <= entry < (step.end or 0)), None)


def loss(replay: Replay, guess: Guess) -> UnusualUse | None:
    """Return what loss functions allocated of the peak, if it is at least a quarter; else None."""
    lives, snapshot = replay.lifetimes, replay.trace.snapshot
    names = [text.rpartition(" ")[2] for text in frame_texts(snapshot)]
    of_loss = stacks_showing(snapshot, names, LOSS_FUNCTION)[lives.stack] & ~lives.freed_stack
    # Only what exists for the pass: pieces make neither weights nor buffers smaller.
    of_loss &= np.isin(guess.category, (Category.ACTIVATIONS, Category.TEMPORARY))
    rows = lives.alive(replay.peak[1])
    rows = rows[of_loss[rows]]
    total = int(lives.size[rows].sum())
    if total < LOSS_SHARE_AT_LEAST * replay.peak[0]:
        return None
    # A fresh scenario: this one is changed in place.
    frees = saving_in_pieces(Scenario.recorded(replay, guess), of_loss)
    return UnusualUse(
        kind=UnusualKind.LOSS, bytes=total, frees_bytes=frees, step=None, frames=largest_stack(replay, rows)
    )


def saving_in_pieces(scenario: Scenario, selected: Mask) -> int:
    """Return by how much the peak falls if the selected blocks are made piece by piece, one piece at a time."""
    scenario.size[selected] //= LOSS_PIECES
    return scenario.replay.peak[0] - int(scenario.live_bytes().max())


def kept(replay: Replay, guess: Guess, steps: list[StepSpan]) -> UnusualUse | None:
    """Return activations and temporaries that outlive whole steps, so that nothing computes with them any more.

    The optimizer or the model may keep one temporary buffer of each size on purpose, so only saved tensors count on a
    CPU, where the frees of other blocks may not be recorded.
    """
    if len(steps) <= KEPT_STEPS:
        return None
    lives = replay.lifetimes
    on_cpu = replay.trace.snapshot.made_up_segments
    kinds = (Category.ACTIVATIONS,) if on_cpu else (Category.ACTIVATIONS, Category.TEMPORARY)
    stays = np.isin(guess.category, kinds) & (lives.died == len(replay.trace)) & (lives.born >= steps[0].start)
    rows = np.flatnonzero(stays & (lives.born < steps[-KEPT_STEPS].start))
    if not len(rows):
        return None
    total = int(lives.size[rows].sum())
    return UnusualUse(
        kind=UnusualKind.KEPT,
        bytes=total,
        frees_bytes=total,
        step=step_of_entry(steps, int(lives.born[rows].min())),
        frames=largest_stack(replay, rows),
    )


def largest_stack(replay: Replay, rows: Integers) -> list[str]:
    """Return the stack with the most bytes among some blocks."""
    stacks, inverse = np.unique(replay.lifetimes.stack[rows], return_inverse=True)
    largest = int(stacks[np.bincount(inverse, replay.lifetimes.size[rows]).argmax()]) if len(rows) else 0
    return stack_lines(replay.trace.snapshot, largest)
