"""Kernels by name, with right statistics, and those that follow each other again and again."""

from collections.abc import Iterator

import msgspec
import numpy as np

from analyzers.columns import Column
from analyzers.traces.answers.costs import Attribution
from analyzers.traces.answers.occupancy import Fillings
from analyzers.traces.columns.intervals import KIND_NAMES
from analyzers.traces.columns.nesting import NONE
from analyzers.traces.columns.work import Work
from analyzers.traces.reading.distinct import combined_codes, first_rows
from analyzers.traces.structs import Kernel, KernelSequence

PARTS = {2: (1, 1), 3: (2, 1), 5: (3, 2), 8: (5, 3)}
"""Runs of a length are told apart by the shorter ones that they consist of."""
LENGTHS = (8, 5, 3)
SEQUENCES_AT_MOST = 5
TIMES_AT_LEAST = 3


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


def sequences(work: Work) -> list[KernelSequence]:
    """Runs of kernels that occur at least three times on one stream without overlap, those that take longest first.

    Of runs inside each other the longest are told.
    """
    if work.device is None or not len(work.rows):
        return []
    c, found = work.trace.columns, list[KernelSequence]()
    order = np.lexsort((work.start, c["lane"][work.rows]))
    name, lane, spent = (column[order] for column in (c["name"][work.rows], c["lane"][work.rows], work.own))
    ends, runs = np.concatenate([[0], np.cumsum(spent)]), runs_of(name)
    for length in LENGTHS:
        run = np.where(lane[: len(runs[length])] == lane[length - 1 :], runs[length], NONE)
        for begins in repeated(run, length):
            total = int((ends[begins + length] - ends[begins]).sum())
            names = [work.trace.names[i] for i in name[begins[0] :][:length].tolist()]
            one = KernelSequence(names=names, count=len(begins), total_ns=total)
            found += [] if contained(one, found) else [one]
    return sorted(found, key=lambda one: -one.total_ns)[:SEQUENCES_AT_MOST]


def runs_of(name: Column) -> dict[int, Column]:
    """By length the number of the run of names that begins at each place; the same run has the same number."""
    runs = {1: name}
    for length, (head, tail) in PARTS.items():
        size = max(0, len(name) - length + 1)
        runs[length] = combined_codes(runs[head][:size], runs[tail][head:][:size])
    return runs


def repeated(run: Column, length: int) -> Iterator[Column]:
    """Where the most frequent runs begin, if often enough; of a run that overlaps itself every `length`-th counts."""
    count = np.bincount(run[run != NONE])
    often = np.lexsort((first_rows(run[run != NONE]), -count))[: 4 * SEQUENCES_AT_MOST]
    for one in often[count[often] >= TIMES_AT_LEAST].tolist():
        begins = apart(np.flatnonzero(run == one), length)
        if len(begins) >= TIMES_AT_LEAST:
            yield begins


def apart(places: Column, length: int) -> Column:
    """Those of the ascending places that lie at least `length` behind the last one taken."""
    nowhere = len(places)
    following = np.append(np.searchsorted(places, places + length), nowhere)
    taken = np.zeros(1, np.int64)
    # Each round takes as many again: those that come so many later.
    while taken[-1] != nowhere:
        taken, following = np.append(taken, following[taken]), following[following]
    found: Column = places[taken[taken != nowhere]]
    return found


def contained(one: KernelSequence, others: list[KernelSequence]) -> bool:
    """Is it a part of a longer run that is as frequent, or the same run shifted?"""
    return any(set(one.names) <= set(other.names) and one.count <= 2 * other.count for other in others)
