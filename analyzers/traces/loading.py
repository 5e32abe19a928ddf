"""Open trace files through the cache: a `Trace` of each file, and a `Recording` of each device or host in it."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from analyzers import store
from analyzers.columns import Column
from analyzers.errors import WorkbenchError
from analyzers.run import Artefact
from analyzers.traces.model import Trace
from analyzers.traces.structs import RankTrace

READER = "analyzers.traces.ingest"
"""The module that `analyzers.store` runs in a limited child; named here, so that a cached trace imports none of it."""

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Recording:
    """One account of one file, as a participant in collectives; times are Unix nanoseconds of its own clock."""

    artefact: Artefact
    trace: Trace
    account: RankTrace
    number: int

    @property
    def rank(self) -> int | None:
        return self.account.rank

    @cached_property
    def rows(self) -> Column:
        return np.flatnonzero(self.trace.columns["meet_account"] == self.number)

    def column(self, name: str) -> Column:
        """A column of `meetings`; times with the file's base."""
        values = np.asarray(self.trace.columns[f"meet_{name}"])[self.rows].astype(np.int64)
        return values + self.base if name in ("start", "end", "since") else values

    @property
    def base(self) -> int:
        return int(self.trace.header.get("base_ns", 0))

    def texts(self, name: str) -> list[str]:
        return [self.trace.names[i] for i in self.column(name).tolist()]

    @cached_property
    def group_ranks(self) -> dict[str, tuple[int, ...]]:
        return {group["name"]: tuple(group["ranks"]) for group in self.trace.header.get("groups", [])}

    @cached_property
    def kinds(self) -> list[Key]:
        """(group with its ranks, name, elements) of each collective: what two must share to be the same one."""
        device = self.account.device is not None
        return [
            (group, self.group_ranks.get(group, ()), name, size if device else 0)
            for group, name, size in zip(
                self.texts("group"), self.texts("name"), self.column("elements").tolist(), strict=True
            )
        ]

    def keys(self) -> list[Key]:
        """What identifies each collective on all ranks: its number in the group, else its place in the step."""
        seen = defaultdict[Key, int](int)
        found = []
        columns = zip(self.kinds, self.column("sequence").tolist(), self.column("step").tolist(), strict=True)
        for kind, sequence, step in columns:
            if sequence >= 0:
                key: Key = (*kind[:2], "sequence", sequence, kind[2])
            else:
                seen[kind, step] += 1
                key = (*kind, step, seen[kind, step])
            found.append(key)
        return found


def open_trace(path: Path, options: store.Options | None = None) -> Trace:
    """Return the trace of a file, from the cache where it was read before.

    Raises:
        InputError: The file is no profiler trace.
    """
    return Trace(store.load([path], READER, options))


def load(
    artefacts: Sequence[Artefact], options: store.Options
) -> tuple[list[Recording], list[tuple[Artefact, WorkbenchError]]]:
    """Return the recordings of all files, and the files that cannot be read with the error of each."""
    loaded = store.load_many([[artefact.path] for artefact in artefacts], READER, options)
    recordings, failures = list[Recording](), []
    for artefact, columns in zip(artefacts, loaded, strict=True):
        if isinstance(columns, WorkbenchError):
            failures.append((artefact, columns))
        else:
            recordings += recordings_of(artefact, Trace(columns), options.peak_flops)
    return recordings, failures


def recordings_of(artefact: Artefact, trace: Trace, peak_flops_per_s: float | None = None) -> list[Recording]:
    """Return the recordings of one file, one for each device that worked, or one for the host.

    The rank is what the file says, else what its name says. `peak_flops_per_s`, where given, replaces the peak that
    the device's name implies.
    """
    recordings = []
    for number, answered in enumerate(msgspec.convert(trace.columns.meta["accounts"], list[RankTrace])):
        rank = artefact.rank if answered.rank is None else answered.rank
        account = msgspec.structs.replace(answered, path=str(artefact.path), rank=rank)
        recordings.append(Recording(artefact, trace, with_utilisation(account, peak_flops_per_s), number))
    return recordings


def with_utilisation(account: RankTrace, peak_flops_per_s: float | None) -> RankTrace:
    """Return the account with `mfu` and `hfu` filled in, where both its FLOP count and the device's peak are known.

    Hardware utilisation (HFU) counts all FLOP; model utilisation (MFU) leaves out what activation checkpointing
    computed a second time (PaLM, arXiv:2204.02311, appendix B).
    """
    peak = peak_flops_per_s or account.peak_flops_per_s
    if not peak or not account.flops:
        return account
    hfu = account.flops_per_s / peak
    mfu = hfu * (1 - account.recomputed_flops / account.flops)
    return msgspec.structs.replace(account, peak_flops_per_s=peak, mfu=round(mfu, 6), hfu=round(hfu, 6))
