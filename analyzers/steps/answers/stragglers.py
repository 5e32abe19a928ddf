"""Who makes the others wait: which ranks, how often, what for, and whether it is always the same ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pandas as pd

from analyzers.steps.answers.lateness import Lateness
from analyzers.steps.model import Steps, Straggler
from analyzers.steps.reading.log_lines import Array
from analyzers.steps.robust_statistics import NORMAL

STEPS_AT_LEAST = 3
SHARE_AT_LEAST = 0.01
"""A straggler is late in this share of the steps, and in STEPS_AT_LEAST."""
LASTING = 0.75
"""Who is late in this share of the steps since it began is so for good."""
TURNS = 0.6
"""Where no rank is the last one in more than this share of the late steps, ranks take turns."""
TOGETHER = 0.3
"""Share of a step in which all ranks do more than train that one may take longer than the others."""
NOISE = 4.0
"""Robust deviations that nobody is late by without cause."""


@dataclass(frozen=True)
class Bars:
    """What counts as late. `late`: longer than the others by this share of what a step takes without anyone late.
    `unsure`: the fewer the steps against it, the more it takes. `cost`: share of the time that a straggler costs.
    """

    late: float
    unsure: float
    cost: float


BY_PROCESSOR, BY_WALL = Bars(0.25, 4, 0.1), Bars(0.05, 10, 0.03)
"""Equal work differs by a third in processor time where caches and cores are shared."""


def stragglers(steps: Steps, late: Lateness) -> list[Straggler]:
    """Ranks that keep the others waiting, the costliest first."""
    if not late.told or len(late) < STEPS_AT_LEAST:
        return []
    bars = late_from(late)
    cost = (BY_PROCESSOR if late.measured else BY_WALL).cost
    found = [judged(late, rank, bars) for rank in steps.ranks]
    turns = taking_turns(late, bars, cost)
    chosen = [s for s in found if s and (s.rank in turns or costly(late, s, cost))]
    named = [msgspec.structs.replace(s, pattern="rotating") if s.rank in turns else s for s in chosen]
    return sorted(whole_hosts(steps, named), key=lambda s: -s.share)


def late_from(late: Lateness) -> Array:
    """Seconds from which on a rank is late, a step.

    Who does twice the work of the others is late all the same: on a busy machine a step is mostly waiting for cores.
    """
    bars = BY_PROCESSOR if late.measured else BY_WALL
    typical = float((late.spent - late.excess.max(axis=1)).clip(lower=0).median())
    share = bars.late * (1 + bars.unsure / len(late)) * typical
    if late.measured:
        plain = np.minimum(share, late.usual.to_numpy())
    else:
        plain = np.full(len(late), max(share, NOISE * spread(late)))
    # Where all collect, save or evaluate in a step, no two take equally long over it.
    return np.where(late.apart, np.maximum(plain, TOGETHER * late.spent.to_numpy()), plain)


def spread(late: Lateness) -> float:
    """Robust deviation of a rank's lateness from step to step; a rank that is always late does not raise it."""
    changes = np.abs(np.diff(late.excess.to_numpy(), axis=0))
    return NORMAL * float(np.median(np.median(changes, axis=0)) / np.sqrt(2))


def judged(late: Lateness, rank: int, bars: Array) -> Straggler | None:
    """What a rank's column of excesses shows, if it is late more than now and then."""
    excess = late.excess[rank]
    when = excess > bars
    found = excess[when]
    if len(found) < max(STEPS_AT_LEAST, SHARE_AT_LEAST * len(late)):
        return None
    lasting = lasting_from(when)
    first = int(found.index.min()) if lasting is None else lasting
    return Straggler(
        rank=rank,
        lateness_s=float(found.mean()),
        recurrence=len(found) / len(late),
        cause=cause_of(late, rank, found.index),
        first_step=first,
        last_step=int(found.index.max()),
        steps_late=len(found),
        lost_s=float(found.sum() / len(late)),
        share=float(found.sum() / late.spent.sum()),
        pattern="recurring" if lasting is None else "persistent",
    )


def lasting_from(when: "pd.Series[bool]") -> int | None:
    """The late step from which on most steps are late, if most late steps come after it."""
    onward = when[::-1].expanding()
    lasting = (onward.mean() >= LASTING) & (2 * onward.sum() > when.sum())
    found = when.index[when & lasting[::-1]]
    return int(found.min()) if len(found) else None


def costly(late: Lateness, found: Straggler, cost: float) -> bool:
    """Whether it costs enough of the time in which it was late."""
    spent = float(late.spent.loc[found.first_step : found.last_step].sum())
    return found.lateness_s * found.steps_late >= cost * spent


def cause_of(late: Lateness, rank: int, when: pd.Index) -> str:
    """The cause that covers most of the excess; `mixed` where none covers the larger part."""
    gains = {cause: float(grid.loc[when, rank].clip(lower=0).sum()) for cause, grid in late.by_cause.items()}
    best = max(gains, key=lambda cause: gains[cause])
    return best if gains[best] > 0.6 * sum(gains.values()) else "mixed"


def taking_turns(late: Lateness, bars: Array, cost: float) -> set[int]:
    """The ranks that are late one after another, each now and then, where that costs enough."""
    excess = late.excess.to_numpy()
    worst = excess.max(axis=1)
    when = worst > bars
    if when.sum() < 2 * STEPS_AT_LEAST or worst[when].sum() < cost * late.spent.sum():
        return set()
    ranks, counts = np.unique(excess.argmax(axis=1)[when], return_counts=True)
    often = (excess > bars[:, None]).mean(axis=0).max()
    if len(ranks) < 2 or counts.max() > TURNS * when.sum() or often > LASTING:
        return set()
    return {int(late.excess.columns[rank]) for rank in ranks}


def whole_hosts(steps: Steps, found: Sequence[Straggler]) -> list[Straggler]:
    """Mark those whose machine is late as a whole, where there are others and it holds several ranks."""
    hosts: dict[str, set[int]] = {}
    for start in steps.starts:
        hosts.setdefault(start.host, set()).add(start.rank)
    late = {s.rank for s in found}
    slow = [ranks for host, ranks in hosts.items() if host and len(ranks) > 1 and ranks <= late]
    together = set().union(*slow) if 0 < len(slow) < len(hosts) else set()
    return [msgspec.structs.replace(s, pattern="host") if s.rank in together else s for s in found]
