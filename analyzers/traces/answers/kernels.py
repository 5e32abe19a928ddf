"""Summarise kernels by name, and find sequences of kernels that repeat: candidates for fusion or CUDA graphs."""

from collections.abc import Iterator

import msgspec
import numpy as np

from analyzers.columns import Column, Integers
from analyzers.traces.answers.costs import Attribution
from analyzers.traces.answers.occupancy import Occupancies
from analyzers.traces.columns.intervals import KIND_NAMES
from analyzers.traces.columns.nesting import NONE
from analyzers.traces.columns.work import Work
from analyzers.traces.model import Kernel, KernelSequence
from analyzers.traces.reading.distinct import combined_codes, first_rows

# For each length of a run of kernels, the lengths of the two parts that it consists of: two runs are equal if both
# parts are.
_SHORTER_RUNS = {2: (1, 1), 3: (2, 1), 5: (3, 2), 8: (5, 3)}
_LENGTHS = (8, 5, 3)
_SEQUENCES_AT_MOST = 5
_TIMES_AT_LEAST = 3


def kernels(attribution: Attribution) -> list[Kernel]:
    """Return a `Kernel` for each kernel name, with statistics over all its executions, the most total time first.

    If no device worked, each item is an operator instead; its time leaves out the operators that it calls.
    """
    work = attribution.work
    if not len(work.rows):
        return []
    name, spent, occupancies = work.trace.columns["name"][work.rows], work.own, Occupancies(work)
    sources = {what: attribution.sources(what) for what in ("operator", "module", "line")}
    order = np.lexsort((spent, name))
    bounds = np.flatnonzero(np.diff(name.take(order), prepend=NONE, append=NONE))
    rows = []
    for begin, times in zip(bounds[:-1].tolist(), np.diff(bounds).tolist(), strict=True):
        number, kind = int(name[order[begin]]), KIND_NAMES[work.kind[order[begin]]]
        same = order[begin : begin + times]
        statistics = _kernel_statistics(work.trace.names[number], kind, spent[same])
        due_to = {what: names.get(number, "").removeprefix("nn.Module: ") for what, names in sources.items()}
        rows.append(msgspec.structs.replace(statistics, **due_to, **occupancies.mean(same)))
    return sorted(rows, key=lambda kernel: (-kernel.total_ns, kernel.name))


def _kernel_statistics(name: str, kind: str, spent: Column) -> Kernel:
    """Return the statistics of the kernel `name`; `spent` holds its durations in ns, ascending.

    `kind` is the kind of its work, such as `compute`.
    """
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
    """Return sequences of 3, 5 or 8 kernels that occur at least three times on one stream, the costliest first.

    Occurrences do not overlap. If one sequence is part of another, only the longer one is listed. Example: a stream
    that runs a b c a b c a b c has one sequence, (a, b, c), three times; (b, c, a) is the same sequence shifted.
    """
    if work.device is None or not len(work.rows):
        return []
    c, repeated = work.trace.columns, list[KernelSequence]()
    order = np.lexsort((work.start, c["lane"][work.rows]))
    name, lane, spent = (column[order] for column in (c["name"][work.rows], c["lane"][work.rows], work.own))
    ends, runs = np.concatenate([[0], np.cumsum(spent)]), _numbered_runs(name)
    for length in _LENGTHS:
        # A run may not reach from one stream into the next.
        run = np.where(lane[: len(runs[length])] == lane[length - 1 :], runs[length], NONE)
        for begins in _frequent_runs(run, length):
            total = int((ends[begins + length] - ends[begins]).sum())
            names = [work.trace.names[i] for i in name[begins[0] :][:length].tolist()]
            sequence = KernelSequence(names=names, count=len(begins), total_ns=total)
            repeated += [] if _is_contained(sequence, repeated) else [sequence]
    return sorted(repeated, key=lambda sequence: -sequence.total_ns)[:_SEQUENCES_AT_MOST]


def _numbered_runs(name: Column) -> dict[int, Column]:
    """Return, for lengths 3, 5 and 8, a number for the sequence of kernels that begins at each index of `name`.

    The result is {length: numbers}. Sequences of equal kernel names have equal numbers. `name` has the index of each
    kernel's name, in the order of the stream. Longer sequences are numbered by the pair of numbers of two shorter ones:
    the 5 kernels from index i by the numbers of the 3 kernels from i and of the 2 kernels from i + 3.
    """
    runs = {1: name}
    for length, (head, tail) in _SHORTER_RUNS.items():
        size = max(0, len(name) - length + 1)
        runs[length] = combined_codes(runs[head][:size], runs[tail][head:][:size])
    return runs


def _frequent_runs(run: Column, length: int) -> Iterator[Integers]:
    """Yield, for each of the most frequent sequences of kernels, the indices at which it begins.

    `run` has the number of the sequence that begins at each index, `length` is the number of kernels in a sequence. If
    occurrences of a sequence overlap, only the first one counts; a sequence that is then too rare is left out.
    """
    count = np.bincount(run[run != NONE])
    # More candidates than are listed, as many of them are shifts of another.
    candidates = np.lexsort((first_rows(run[run != NONE]), -count))[: 4 * _SEQUENCES_AT_MOST]
    for number in candidates[count[candidates] >= _TIMES_AT_LEAST].tolist():
        begins = _not_overlapping(np.flatnonzero(run == number), length)
        if len(begins) >= _TIMES_AT_LEAST:
            yield begins


def _not_overlapping(indices: Integers, length: int) -> Integers:
    """Return the ascending `indices` without those that are less than `length` after the last one kept.

    [0, 1, 2, 3, 7] with length 3 gives [0, 3, 7].
    """
    end = len(indices)
    following = np.append(np.searchsorted(indices, indices + length), end)
    taken = np.zeros(1, np.int64)
    # Each round doubles how many are taken: `following` then leads as many takings further.
    while taken[-1] != end:
        taken, following = np.append(taken, following[taken]), following[following]
    return np.asarray(indices[taken[taken != end]])


def _is_contained(sequence: KernelSequence, others: list[KernelSequence]) -> bool:
    """Return whether a sequence of kernels adds nothing to one of `others`.

    A sequence adds nothing if another one contains all of its kernel names and occurs at least half as often. The
    sequence is then a part of the other one, or the same repetition begun at another kernel: in a stream that repeats
    a, b and c, (b, c, a) adds nothing to (a, b, c).
    """
    names = set(sequence.names)
    return any(names <= set(other.names) and sequence.count <= 2 * other.count for other in others)
