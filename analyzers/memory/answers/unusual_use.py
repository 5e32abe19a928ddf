"""What stands out in a trace without being a failure: state that comes late, the loss, what is kept over steps."""

import re

import numpy as np

from analyzers.columns import Column
from analyzers.memory.answers.scenario import Scene
from analyzers.memory.answers.stacks import shown
from analyzers.memory.categories.categorise import ACTIVATIONS, OPTIMIZER_STATE, TEMPORARY, Guess
from analyzers.memory.categories.rules import stacks_with, written_frames
from analyzers.memory.model import Notable
from analyzers.memory.replay.lifetimes import Replay
from analyzers.memory.replay.phases import Step, steps

LOSS = re.compile(r"(cross_entropy|log_softmax|nll_loss|_loss)\w*$")
LOSS_PIECES = 8
BYTES_AT_LEAST, PEAK_SHARE, LOSS_SHARE = 1 << 20, 0.05, 0.25
KEPT_STEPS = 2


def notable(replay: Replay, guess: Guess) -> list[Notable]:
    """Each at most once, only where it is a good part of the peak."""
    whole = [step for step in steps(replay.trace) if step.end]
    found = [late_state(replay, guess, whole), loss(replay, guess), kept(replay, guess, whole)]
    return [one for one in found if one and one.bytes >= max(BYTES_AT_LEAST, PEAK_SHARE * replay.peak[0])]


def late_state(replay: Replay, guess: Guess, whole: list[Step]) -> Notable | None:
    """The optimizer's state, where the trace shows it coming into being and staying."""
    lives = replay.lifetimes
    state = guess.category == OPTIMIZER_STATE
    new = np.flatnonzero(state & (lives.born >= 0) & (lives.died == len(replay.trace)))
    older = lives.size[state & (lives.born < 0)].sum()
    if not len(new) or older >= lives.size[new].sum():
        return None
    first = int(lives.born[new].min())
    step = next((step.number for step in whole if step.start <= first < (step.end or 0)), None)
    held = int(lives.size[new].sum())
    return Notable(what="late_state", bytes=held, frees_bytes=0, step=step, frames=frames_of(replay, new))


def loss(replay: Replay, guess: Guess) -> Notable | None:
    """What functions of the loss hold at the peak, from a share on."""
    lives, snapshot = replay.lifetimes, replay.trace.snapshot
    names = [frame.rpartition(" ")[2] for frame in written_frames(snapshot)]
    made = stacks_with(snapshot, names, LOSS)[lives.stack] & ~lives.freed_stack
    made &= np.isin(guess.category, [ACTIVATIONS, TEMPORARY])
    rows = lives.alive(replay.peak[1])
    rows = rows[made[rows]]
    held = int(lives.size[rows].sum())
    if held < LOSS_SHARE * replay.peak[0]:
        return None
    frees = in_pieces(Scene.of(replay, guess), made)
    return Notable(what="loss", bytes=held, frees_bytes=frees, step=None, frames=frames_of(replay, rows))


def in_pieces(scene: Scene, chosen: Column) -> int:
    """By how much the peak falls if some blocks are made piece by piece, one piece at a time."""
    scene.size[chosen] //= LOSS_PIECES
    return scene.replay.peak[0] - int(scene.level().max())


def kept(replay: Replay, guess: Guess, whole: list[Step]) -> Notable | None:
    """Activations and temporaries that outlive whole steps: nothing computes with them any more.

    Of each size the optimizer or the model might keep one buffer on purpose, so only saved tensors count where the ends
    of others may have gone unseen.
    """
    if len(whole) <= KEPT_STEPS:
        return None
    lives = replay.lifetimes
    kinds = [ACTIVATIONS] if replay.trace.snapshot.made_up_segments else [ACTIVATIONS, TEMPORARY]
    stays = np.isin(guess.category, kinds) & (lives.died == len(replay.trace)) & (lives.born >= whole[0].start)
    rows = np.flatnonzero(stays & (lives.born < whole[-KEPT_STEPS].start))
    if not len(rows):
        return None
    born = int(lives.born[rows].min())
    step = next((step.number for step in whole if step.start <= born < (step.end or 0)), None)
    held = int(lives.size[rows].sum())
    return Notable(what="kept", bytes=held, frees_bytes=held, step=step, frames=frames_of(replay, rows))


def frames_of(replay: Replay, rows: Column) -> list[str]:
    """The stack that made the most of some blocks."""
    stacks, inverse = np.unique(replay.lifetimes.stack[rows], return_inverse=True)
    largest = int(stacks[np.bincount(inverse, replay.lifetimes.size[rows]).argmax()]) if len(rows) else 0
    return shown(replay.trace.snapshot, largest)
