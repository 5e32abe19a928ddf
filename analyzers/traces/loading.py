"""Load trace files through the cache, as a `Trace` for each file and a `Recording` for each device or host in it."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from analyzers import store
from analyzers.columns import Integers
from analyzers.errors import WorkbenchError
from analyzers.run import Artefact
from analyzers.store import is_milestone
from analyzers.traces.model import RankTrace
from analyzers.traces.reading.trace import Problem, Trace

READER = "analyzers.traces.digest"
"""The module that `analyzers.store` runs in a child process to read a trace.

It is given by name and not imported here, so that cached traces are opened fast.
"""

_COVERED_AT_LEAST = 0.9
"""Utilisation is computed only if counted operators launched at least this share of the time of matrix products."""
_MOMENTS = ("start", "end", "since")


@dataclass(frozen=True)
class Recording:
    """One device (or the host) of one trace file, with the columns for the comparison of ranks.

    `account` has the results of the device, and `number` is its index in the file. Times are in ns since 1970 on the
    clock of the rank's machine, unless a docstring says otherwise.
    """

    artefact: Artefact
    trace: Trace
    account: RankTrace
    number: int

    @property
    def rank(self) -> int | None:
        """The recorded rank; None if neither the trace nor the name of the file shows it."""
        return self.account.rank

    @property
    def problems(self) -> list[Problem]:
        """The problems of the file and its events, which limit how far the numbers can be trusted."""
        return msgspec.convert(self.trace.columns.meta["account_problems"][self.number], list[Problem])

    @cached_property
    def rows(self) -> Integers:
        """The rows of this device or host in the trace's table of collectives, whose columns are named `meet_...`."""
        return np.flatnonzero(self.trace.columns["meet_account"] == self.number)

    def column(self, name: str) -> Integers:
        """Return a column of numbers on the collectives of this device or host, one per collective.

        It is the trace's column `meet_{name}`; the docstring of `messages.collective_columns` explains
        these columns. Times are in Unix ns.
        """
        values = np.asarray(self.trace.columns[f"meet_{name}"])[self.rows].astype(np.int64)
        return values + self.trace.base if name in _MOMENTS else values

    def table(self, prefix: str, names: Sequence[str]) -> Integers:
        """Return the rows of this device or host in the table `message`, `issue` or `block`, as int64[row, column].

        `prefix` is the name of the table and `names` are the wanted columns; the docstring of
        `messages.message_columns` explains them. Times are in ns of the trace's own clock.
        """
        c = self.trace.columns
        mine = np.flatnonzero(c[f"{prefix}_account"] == self.number)
        return np.column_stack([np.asarray(c[f"{prefix}_{name}"])[mine].astype(np.int64) for name in names])

    def texts(self, name: str) -> list[str]:
        return [self.trace.names[i] for i in self.column(name).tolist()]

    @cached_property
    def group_ranks(self) -> dict[str, tuple[int, ...]]:
        return {group["name"]: tuple(group["ranks"]) for group in self.trace.header.get("groups", [])}


def open_trace(path: Path, options: store.Options | None = None) -> Trace:
    """Return the trace in a file, from the cache if it was read before.

    Raises:
        InputError: The file is no profiler trace.
    """
    return Trace(store.load([path], READER, options))


def load(
    artefacts: Sequence[Artefact], options: store.Options, tell: Callable[[int, list[Recording]], None] | None = None
) -> tuple[list[Recording], list[tuple[Artefact, WorkbenchError]]]:
    """Return a `Recording` for each device or host in the files, and (file, error) for each unreadable file.

    While many files are read, `tell` is called from time to time with two arguments: the number of files that have
    been read, and the recordings in them.
    """
    loaded = store.load_each([[artefact.path] for artefact in artefacts], READER, options)
    recordings, failures, known = list[Recording](), [], dict[Hashable, Any]()
    for number, (artefact, columns) in enumerate(zip(artefacts, loaded, strict=True), 1):
        if isinstance(columns, WorkbenchError):
            failures.append((artefact, columns))
        else:
            if len(artefacts) > 1:
                _share_equal(columns.meta, known)
            recordings += _recordings_of(artefact, Trace(columns), options.peak_flops)
            # The recordings have all else, which would be kept twice.
            columns.meta["accounts"] = [{"device": account["device"]} for account in columns.meta["accounts"]]
        if tell and recordings and is_milestone(number, len(artefacts)):
            tell(number, recordings)
    return recordings, failures


_LONG_LIST = 8


def _share_equal(value: Any, known: dict[Hashable, Any]) -> Any:
    """Return a value of a JSON document in which equal texts, and equal long lists of integers, are one shared object.

    Lists and dicts are changed in place. `known` holds the shared objects; new ones are added to it. This saves memory,
    because the traces of all ranks name the same kernels and list the same members of process groups.
    """
    if isinstance(value, str):
        return known.setdefault(value, value)
    if isinstance(value, list):
        if len(value) > _LONG_LIST and all(type(item) is int for item in value):
            return known.setdefault(tuple(value), value)
        value[:] = [_share_equal(item, known) for item in value]
    elif isinstance(value, dict):
        for key, item in value.items():
            value[key] = _share_equal(item, known)
    return value


def _recordings_of(artefact: Artefact, trace: Trace, peak_flops_per_s: float | None = None) -> list[Recording]:
    """Return a `Recording` for each device that worked in one file, or one for the host if none did.

    The rank is read from the file, or else from its name. If `peak_flops_per_s` is given, it replaces the peak of the
    device named in the file.
    """
    recordings = []
    for number, answered in enumerate(msgspec.convert(trace.columns.meta["accounts"], list[RankTrace])):
        rank = artefact.rank if answered.rank is None else answered.rank
        account = msgspec.structs.replace(answered, path=str(artefact.path), rank=rank)
        recordings.append(Recording(artefact, trace, with_utilisation(account, peak_flops_per_s), number))
    return recordings


def with_utilisation(account: RankTrace, peak_flops_per_s: float | None) -> RankTrace:
    """Return `account`, the results of a device, with `mfu` and `hfu` filled in.

    They stay None if the operations were not counted or the device's peak is not known.

    Hardware utilisation (HFU) counts all floating-point operations; model utilisation (MFU) leaves out those that
    activation checkpointing repeated (PaLM, arXiv:2204.02311, appendix B). If `peak_flops_per_s` is given, it replaces
    the known peak.
    """
    peak = peak_flops_per_s or account.peak_flops_per_s
    if not peak or not account.flops:
        return account
    if account.flops_coverage is not None and account.flops_coverage < _COVERED_AT_LEAST:
        return msgspec.structs.replace(account, peak_flops_per_s=peak)
    hfu = account.flops_per_s / peak
    mfu = hfu * (1 - account.recomputed_flops / account.flops)
    return msgspec.structs.replace(account, peak_flops_per_s=peak, mfu=round(mfu, 6), hfu=round(hfu, 6))
