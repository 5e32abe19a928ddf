"""Estimate the time that the job would save if one thing were faster, by simulating the matched collectives again.

Example: two ranks wait 20 ms each for their data before each of 4 all_reduces. If only one of them loads faster,
nothing is saved, because it then waits for the other; if both do, 80 ms are saved.
"""

from collections.abc import Iterator
from enum import StrEnum

import msgspec
import numpy as np

from analyzers.traces.across.lateness import Lateness, Replay
from analyzers.traces.columns.phases import HOST_PHASES

WORTH, _COLLECTIVES_AT_MOST = 0.01, 3
"""The share of the time from which on an answer is listed, and the most kinds of collectives that are simulated."""


class Change(StrEnum):
    """The assumption of a what-if question: what would be faster.

    `rank_as_others`: one rank works only as long as the others. `without_phase`: a phase of the host takes no time.
    `collective_twice_as_fast`: the transfers of a collective take half as long. `stage_as_others`: a pipeline stage
    computes only as long as the others.
    """

    RANK_AS_OTHERS = "rank_as_others"
    WITHOUT_PHASE = "without_phase"
    COLLECTIVE_TWICE_AS_FAST = "collective_twice_as_fast"
    STAGE_AS_OTHERS = "stage_as_others"


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The time that the recorded part of the job would save if one thing were faster, found by simulation.

    `change` says what is assumed. `window_ns` is the simulated time from the first work to the end of the last
    collective, over `steps` recorded steps; with the change it would be `saved_ns` shorter. `name` is the phase (such
    as `data`) or the collective that is assumed to be faster (empty: neither). `rank` is the rank that is assumed to be
    faster (None: not a single one). `stage` (from 0) is the pipeline stage that is assumed to compute faster, and
    `ranks` are its ranks.
    """

    change: Change
    name: str
    rank: int | None
    steps: int
    window_ns: int
    saved_ns: int
    stage: int | None = None
    ranks: list[int] = []


def what_ifs(lateness: Lateness, window_ns: int, saved_by_rank: dict[int, int]) -> list[WhatIf]:
    """Return the assumed changes that would save more than 1 % of the time, the largest saving first.

    `window_ns` is the simulated time from the first work to the end of the last collective. `saved_by_rank` has, for
    each rank, the ns saved if it worked only as long as the others.
    """
    steps = max(1, len(set(lateness.matched.column("step").tolist())))

    def answer(change: Change, name: str, rank: int | None, saved_ns: int) -> WhatIf:
        return WhatIf(change=change, name=name, rank=rank, steps=steps, window_ns=window_ns, saved_ns=saved_ns)

    rows = [answer(Change.RANK_AS_OTHERS, "", rank, saved) for rank, saved in saved_by_rank.items()]
    rows += [answer(Change.WITHOUT_PHASE, phase, None, saved) for phase, saved in _without_phases(lateness, window_ns)]
    rows += [
        answer(Change.COLLECTIVE_TWICE_AS_FAST, name, None, saved)
        for name, saved in _faster_collectives(lateness, window_ns)
    ]
    return sorted((row for row in rows if row.saved_ns > WORTH * window_ns), key=lambda row: -row.saved_ns)


def _without_phases(lateness: Lateness, window_ns: int) -> Iterator[tuple[str, int]]:
    """Yield (phase, ns saved if the phase took no time on any rank) for each longer phase of the host.

    A phase counts as longer if it takes more than 1 % of `window_ns` on some rank. `window_ns` is the simulated time
    from the first work to the last collective.
    """
    replay, work = Replay(lateness), lateness.matched.column("work_ns")
    overlap = lateness.matched.column("overlap_ns")
    for phase in HOST_PHASES:
        spent = np.minimum(lateness.matched.column(f"{phase}_ns"), work)
        # What no rank spends on a phase cannot be saved, so only few have to be played.
        if lateness.sum_by_rank(spent).max() > WORTH * window_ns:
            yield phase, max(0, window_ns - replay.duration(work - spent, overlap))


def _faster_collectives(lateness: Lateness, window_ns: int) -> Iterator[tuple[str, int]]:
    """Yield (name, ns saved if their transfers took half as long) for the collectives with the longest transfers.

    Only the three names with the most transfer time are tried, if it is more than 1 % of `window_ns`.
    """
    matched, replay = lateness.matched, Replay(lateness)
    work, overlap = matched.column("work_ns"), matched.column("overlap_ns")
    names = np.array([matched.text(row, "name") for row in matched.first_row.tolist()])
    total = {name: int(lateness.transfer[names == name].sum()) for name in dict.fromkeys(names.tolist())}
    for name in sorted(total, key=lambda name: -total[name])[:_COLLECTIVES_AT_MOST]:
        if total[name] > WORTH * window_ns:
            transfer = np.where(names == name, lateness.transfer // 2, lateness.transfer)
            yield name, max(0, window_ns - replay.duration(work, overlap, transfer))
