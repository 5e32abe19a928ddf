"""Kernels by name, with right statistics, and those that follow each other again and again."""

import msgspec
import numpy as np

from analyzers.traces.answers import Kernel, Sequence
from analyzers.traces.costs import Attribution
from analyzers.traces.distinct import coded
from analyzers.traces.filling import Fillings
from analyzers.traces.intervals import KIND_NAMES
from analyzers.traces.table import Column
from analyzers.traces.work import Work

LENGTHS = (8, 5, 3)
SEQUENCES_AT_MOST = 5
TIMES_AT_LEAST = 3
POWERS = np.array([pow(0x9E3779B97F4A7C15, i, 1 << 64) for i in range(max(LENGTHS))], np.uint64).astype(np.int64)
"""Of an odd number: the sums that they weigh tell runs apart as well as 64 bits can."""


def kernels(due: Attribution) -> list[Kernel]:
    """Every kernel name with its statistics, the longest in total first; operators count their own time."""
    work = due.work
    if not len(work.rows):
        return []
    name, spent, filled = work.trace.columns["name"][work.rows], work.own, Fillings(work)
    sources = {what: due.sources(what) for what in ("operator", "module", "line")}
    order = np.lexsort((spent, name))
    _, first, count = np.unique(name[order], return_index=True, return_counts=True)
    found = []
    for at, times in zip(first.tolist(), count.tolist(), strict=True):
        number, kind = int(name[order[at]]), KIND_NAMES[work.kind[order[at]]]
        places = order[at : at + times]
        one = kernel(work.trace.names[number], kind, spent[places])
        told = {what: names.get(number, "").removeprefix("nn.Module: ") for what, names in sources.items()}
        found.append(msgspec.structs.replace(one, **told, **filled.mean(places)))
    return sorted(found, key=lambda kernel: (-kernel.total_ns, kernel.name))


def kernel(name: str, kind: str, spent: Column) -> Kernel:
    """The statistics of one name from its times, which ascend."""
    count, total = len(spent), int(spent.sum())
    return Kernel(
        name=name,
        kind=kind,
        count=count,
        total_ns=total,
        mean_ns=round(total / count),
        median_ns=int(spent[(count - 1) // 2] + spent[count // 2]) // 2,
        std_ns=round(float(spent.std())),
        min_ns=int(spent[0]),
        max_ns=int(spent[-1]),
    )


def sequences(work: Work) -> list[Sequence]:
    """Runs of kernels that occur at least three times on one stream without overlap, those that take longest first.

    Of runs inside each other the longest are told.
    """
    if work.device is None or not len(work.rows):
        return []
    c, found = work.trace.columns, list[Sequence]()
    order = np.lexsort((work.start, c["lane"][work.rows]))
    name, lane, spent = (column[order] for column in (c["name"][work.rows], c["lane"][work.rows], work.own))
    for length in LENGTHS:
        for one in repeated(work, name, lane, spent, length):
            found += [] if contained(one, found) else [one]
    return sorted(found, key=lambda one: -one.total_ns)[:SEQUENCES_AT_MOST]


def repeated(work: Work, name: Column, lane: Column, spent: Column, length: int) -> list[Sequence]:
    """The runs of one length that occur often enough; of a run that overlaps itself every `length`-th counts."""
    if len(name) < length:
        return []
    windows = np.lib.stride_tricks.sliding_window_view(coded(name)[1], length)
    places = np.flatnonzero(lane[: len(windows)] == lane[length - 1 :])
    digest = (windows * POWERS[:length]).sum(axis=1)[places]
    runs, first, which = np.unique(digest, return_index=True, return_inverse=True)
    often = np.lexsort((first, -np.bincount(which, minlength=len(runs))))[: 4 * SEQUENCES_AT_MOST]
    ends = np.concatenate([[0], np.cumsum(spent)])
    found = []
    for run in often.tolist():
        begins = apart(places[which == run], length)
        if len(begins) >= TIMES_AT_LEAST:
            total = int((ends[begins + length] - ends[begins]).sum())
            names = [work.trace.names[i] for i in name[places[first[run]] :][:length].tolist()]
            found.append(Sequence(names=names, count=len(begins), total_ns=total))
    return found


def apart(places: Column, length: int) -> Column:
    """Those of the ascending places that lie at least `length` behind the last one taken."""
    if (np.diff(places) >= length).all():
        return places
    following = np.searchsorted(places, places + length).tolist()
    taken, place = [], 0
    while place < len(following):
        taken.append(place)
        place = following[place]
    return places[taken]


def contained(one: Sequence, others: list[Sequence]) -> bool:
    """Is it a part of a longer run that is as frequent, or the same run shifted?"""
    return any(set(one.names) <= set(other.names) and one.count <= 2 * other.count for other in others)
