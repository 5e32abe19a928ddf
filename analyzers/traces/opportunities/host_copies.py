"""Find the copies between host and device during which nothing computes, from pageable and from pinned memory."""

import re

import numpy as np

from analyzers.columns import Integers, Mask
from analyzers.traces.answers.idle import intervals_of_kind, subtract
from analyzers.traces.answers.launches import copy_rows
from analyzers.traces.columns.intervals import COMPUTE, MEMORY, CoveredTime, merge
from analyzers.traces.columns.work import Work

_COPY_AT_LEAST_NS = 20_000
"""The shortest copy that counts: a scalar takes its latency, wherever it comes from."""
_HOST_COPY = re.compile(r"HtoD|DtoH|HostToDevice|DeviceToHost")
_PAGEABLE = re.compile("Pageable")
_UNKNOWN_MEMORY = re.compile(r"\((Host -> Device|Device -> Host)\)|HostToDevice|DeviceToHost")
"""Matches the copies of which ROCm does not say whether the host's memory is pinned."""
_PAGEABLE_BYTES_PER_S = 12e9
"""The rate up to which a large copy is assumed to come from or go to pageable memory, which reaches 3 to 12 GB/s."""
_LARGE_BYTES = 1 << 20


def copies_between(work: Work) -> tuple[Mask, Mask]:
    """Return two masks of the events in `work`: copies from or to pageable memory of the host, and all others."""
    names = work.trace.names
    is_host, says_pageable, unknown = (
        np.array([bool(matches(name)) for name in names] or [False])[work.trace.columns["name"][work.rows]]
        for matches in (_HOST_COPY.search, _PAGEABLE.search, _UNKNOWN_MEMORY.search)
    )
    copies = is_host & (work.kind == MEMORY) & (work.own >= _COPY_AT_LEAST_NS)
    _, size = copy_rows(work)
    moved = size[work.rows]
    slow = (moved >= _LARGE_BYTES) & (moved < _PAGEABLE_BYTES_PER_S * work.own / 1e9)
    pageable = copies & (says_pageable | (unknown & slow))
    return pageable, copies & ~pageable


def alone(work: Work, copies: Mask) -> Integers:
    """Return, for each event that `copies` selects, the ns during which it runs and nothing computes; else 0."""
    computing = intervals_of_kind(work, COMPUTE)
    covered = CoveredTime(*subtract(merge(work.start[copies], work.end[copies]), computing))
    return np.where(copies, covered.between(work.start, work.end), 0)
