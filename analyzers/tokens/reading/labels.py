"""Find out by how many positions the labels of a row are shifted, and which tokens the model learns to predict."""

from typing import NamedTuple

import numpy as np

from analyzers.columns import Column, Mask
from analyzers.tokens.model import IGNORE, UNKNOWN_SHIFT

# The likely shifts come first: of equally good ones the first is taken.
_SHIFTS = (0, 1, -1, 2, -2)
"""The shifts that are tried: with shift n, the label at a position is the token n positions later."""
_ENOUGH = 0.6
"""The share of the labels that must equal the tokens at a shift for that shift to be accepted."""
FEW = 3


class Targets(NamedTuple):
    """The meaning of a row's labels: a mask of the trained tokens, and the shift of the labels.

    `mismatched` is the number of labels that are not the tokens at this shift, `ignored_values` the number of negative
    labels other than -100.
    """

    trained: Mask
    shift: int
    mismatched: int
    ignored_values: int


def find_targets(ids: Column, labels: Column, padding: Mask, usual: int) -> Targets:
    """Return which tokens of a row its labels train.

    `usual` is the shift of earlier rows, which is used if the labels of this row are too few to show it. `padding` is
    a mask of the padding tokens, whose labels are not compared.
    """
    is_label = labels >= 0
    shift, matched = best_shift(ids, labels, is_label & ~padding, usual)
    # Where the labels do not tell, the rows before are the best guess: the same code made all of them.
    by = usual if shift == UNKNOWN_SHIFT else shift
    trained = np.zeros(len(ids), dtype=bool)
    where = np.flatnonzero(is_label) + by
    trained[where[(where >= 0) & (where < len(ids))]] = True
    counted = int(np.count_nonzero(is_label & ~padding))
    bad = int(np.count_nonzero((labels < 0) & (labels != IGNORE)))
    return Targets(trained, shift, counted - matched, bad)


def best_shift(ids: Column, labels: Column, compared: Mask, usual: int) -> tuple[int, int]:
    """Return the shift at which most labels equal tokens, and the number of these; `UNKNOWN_SHIFT` if they are too few.

    Only the positions of the mask `compared` count. `usual` is preferred among shifts that are equally good.
    """
    where = np.flatnonzero(compared)
    if not len(where):
        return UNKNOWN_SHIFT, 0
    counts = {shift: matches(ids, labels, where, shift) for shift in (usual, *_SHIFTS)}
    # Of equal counts, `max` takes the first, which is that of `usual`.
    best = max(counts, key=lambda shift: counts[shift])
    if counts[best] < _ENOUGH * len(where):
        # A few labels may be those of tokens beyond the row's end.
        return UNKNOWN_SHIFT, len(where) if len(where) <= FEW else counts[best]
    # Shifted labels at the ends of a row belong to tokens beyond it, and are no mismatch.
    edge = sum(1 for i in where[-2:] if i + best >= len(ids)) + sum(1 for i in where[:2] if i + best < 0)
    return best, counts[best] + edge


def matches(ids: Column, labels: Column, where: Column, shift: int) -> int:
    """Return how many of the labels at the positions `where` equal the token `shift` positions later."""
    inside = where[(where + shift >= 0) & (where + shift < len(ids))]
    return int(np.count_nonzero(labels[inside] == ids[inside + shift]))
