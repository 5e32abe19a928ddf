"""Open trace files through the cache: a `Trace` of each file, and a `Recording` of each device or host in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from analyzers import store
from analyzers.columns import Integers
from analyzers.errors import WorkbenchError
from analyzers.run import Artefact
from analyzers.traces.model import RankTrace
from analyzers.traces.reading.problems import Problem
from analyzers.traces.reading.trace import Trace

READER = "analyzers.traces.digest"
"""The module that `analyzers.store` runs in a limited child; named here, so that a cached trace imports none of it."""

MOMENTS = ("start", "end", "since")


@dataclass(frozen=True)
class Recording:
    """One account of one file as a participant in collectives; times are Unix nanoseconds of its own clock."""

    artefact: Artefact
    trace: Trace
    account: RankTrace
    number: int

    @property
    def rank(self) -> int | None:
        """The rank, None where neither the file nor its name says it."""
        return self.account.rank

    @property
    def base(self) -> int:
        """Unix ns of the file's own time 0."""
        return int(self.trace.header.get("base_ns", 0))

    @property
    def problems(self) -> list[Problem]:
        """What limits the meaning of the account's numbers."""
        return msgspec.convert(self.trace.columns.meta["account_problems"][self.number], list[Problem])

    @cached_property
    def rows(self) -> Integers:
        """Rows of the `meet_` columns that belong to this account."""
        return np.flatnonzero(self.trace.columns["meet_account"] == self.number)

    def column(self, name: str) -> Integers:
        """Return a column of `answers.between_collectives` for this account; moments are Unix ns."""
        values = np.asarray(self.trace.columns[f"meet_{name}"])[self.rows].astype(np.int64)
        return values + self.base if name in MOMENTS else values

    def texts(self, name: str) -> list[str]:
        """Return a column that holds numbers of texts, as the texts."""
        return [self.trace.names[i] for i in self.column(name).tolist()]

    @cached_property
    def group_ranks(self) -> dict[str, tuple[int, ...]]:
        """The ranks of each process group by its name, as far as the file lists them."""
        return {group["name"]: tuple(group["ranks"]) for group in self.trace.header.get("groups", [])}


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
