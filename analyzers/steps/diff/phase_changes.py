"""Find out which phases made the mean step longer or shorter."""

import msgspec

from analyzers.steps.table import Steps

OUTSIDE = "in no phase"
"""The name under which the time of a step outside of all phases is listed."""


class PhaseChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change of the mean duration of one phase of a step (`what`) from run `a` to run `b`, in seconds per step.

    The changes of all phases add up to the change of the mean step. Only steps that did nothing besides training count.
    """

    what: str
    a_s: float
    b_s: float
    change_s: float


def phase_changes(a: Steps, b: Steps) -> list[PhaseChange]:
    """Return a `PhaseChange` for each phase, the largest change first; the time outside of phases comes last.

    The list is empty if one of the runs has no step that did nothing besides training.
    """
    before, after = _mean_phases(a), _mean_phases(b)
    if not before or not after:
        return []
    changes = [
        PhaseChange(what=name, a_s=x, b_s=y, change_s=y - x)
        for name in before | after
        for x, y in [(before.get(name, 0.0), after.get(name, 0.0))]
    ]
    return sorted(changes, key=lambda phase: (phase.what == OUTSIDE, -abs(phase.change_s)))


def _mean_phases(steps: Steps) -> dict[str, float]:
    """Return the mean seconds of each phase over all ranks, and of the time outside of phases.

    Only steps that did nothing besides training count; the result is empty if there are none.
    """
    rows = steps.plain.to_numpy()
    if not rows.any():
        return {}
    # Means, not medians: only they add up to the mean step.
    phases = {name: float(steps.phases.at(name, rows).mean()) for name in steps.phases}
    return {**phases, OUTSIDE: float(steps.table["dur_s"].to_numpy()[rows].mean()) - sum(phases.values())}
