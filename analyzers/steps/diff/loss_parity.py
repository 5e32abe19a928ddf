"""Compare the losses of two runs step by step."""

import msgspec
import numpy as np

from analyzers.columns import Column, Mask
from analyzers.steps.answers.losses import mean_by_step
from analyzers.steps.table import Steps

_DIVERGED = 1e-2
"""Losses have diverged if they differ by more than this share of the first run's loss."""


class LossParity(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of the losses of two runs in the steps that both have.

    `steps` is the number of these steps, and `identical` says whether all losses are exactly equal. `largest` is the
    largest absolute difference. `differs_from` is the first step with a different loss. `diverges_from` (`apart_from`
    in JSON) is the step from which on all losses differ by more than 1 %. The two are None if there is no such step.
    """

    steps: int
    identical: bool
    largest: float
    differs_from: int | None
    diverges_from: int | None = msgspec.field(name="apart_from")


def loss_parity(a: Steps, b: Steps) -> LossParity | None:
    """Return a `LossParity` that compares the losses of two runs step by step; None if they have no step in common."""
    x, y = (mean_by_step(steps, "loss") for steps in (a, b))
    common = x.index.intersection(y.index)
    if not len(common):
        return None
    before, after = x[common].to_numpy(), y[common].to_numpy()
    difference = np.abs(after - before)
    differing = np.flatnonzero(difference > 0)
    return LossParity(
        steps=len(common),
        identical=not len(differing),
        largest=float(difference.max()),
        differs_from=int(common[differing[0]]) if len(differing) else None,
        diverges_from=diverges_from(np.asarray(common), difference > _DIVERGED * np.abs(before)),
    )


def diverges_from(steps: Column, diverged: Mask) -> int | None:
    """Return the step from which on the losses stay diverged; None if they agree at the last step.

    `diverged` says, for each of the ascending `steps`, whether the losses differ by more than the tolerance.
    """
    if not diverged[-1]:
        return None
    # Single steps may agree by chance; only what stays diverged counts.
    close = np.flatnonzero(~diverged)
    return int(steps[close[-1] + 1 if len(close) else 0])
