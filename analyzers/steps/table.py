"""Define `Steps`: the steps of all ranks in one table, from which all answers are computed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzers.columns import Column, Floats, Integers, Mask
from analyzers.errors import WorkbenchError
from analyzers.report import Finding, Input, Severity
from analyzers.run import Artefact
from analyzers.steps.model import Cause, MappedLog
from analyzers.steps.reading.log_lines import Header, narrowed

MAD_TO_STD = 1.4826
"""The factor from the median absolute deviation to the standard deviation of normal noise: 1 / Phi^-1(3/4)."""


def robust_deviation(values: Floats) -> float:
    return MAD_TO_STD * float(np.median(np.abs(values - np.median(values))))


def _column_medians(table: Floats) -> Floats:
    counts = (~np.isnan(table)).sum(axis=0)
    medians = np.full(table.shape[1], np.nan)
    # np.nanmedian is far slower. Partitioning puts NaN behind all numbers, so columns with equally many share a middle.
    for count in np.unique(counts[counts > 0]).tolist():
        middle, same = [(count - 1) // 2, count // 2], counts == count
        medians[same] = np.partition(table[:, same], middle, axis=0)[middle].sum(axis=0) / 2
    return medians


NOT_PLAIN = ("first", "compile", "gc", "eval", "checkpoint", "profile", "snapshot")
"""The tags of steps that do more than train; medians leave these steps out."""
RECORDER_PHASES = ("profiler", "snapshot")
"""The phases of a step in which this project's own recorders work."""


@dataclass(frozen=True)
class ProcessStart:
    """The start of a process that wrote a log.

    `session` is the number of this start; the column `session` of the steps table has it in each row that the process
    logged. `started_ns` is Unix time.
    """

    rank: int
    session: int
    started_ns: int
    host: str

    @classmethod
    def from_header(cls, rank: int, session: int, header: Header) -> "ProcessStart":
        """Return the `ProcessStart` that a log's header describes; values that the header does not have are 0 or ""."""
        started = header.get("started_ns")
        return cls(rank, session, started if isinstance(started, int) else 0, str(header.get("host", "")))


class Durations:
    """The time of each phase in each row of the steps table, as a mapping {phase: column of seconds}.

    The times are stored as whole ns and converted to seconds only when they are used: as float64, all columns together
    would take twice the memory.
    """

    def __init__(self, ns: pd.DataFrame) -> None:
        self._ns = ns

    def __iter__(self) -> Iterator[str]:
        return map(str, self._ns)

    def __contains__(self, name: object) -> bool:
        return name in self._ns

    def __len__(self) -> int:
        return len(self._ns.columns)

    def __getitem__(self, name: str) -> "pd.Series[float]":
        return self._ns[name] / 1e9

    def at(self, name: str, rows: Mask | Integers | slice) -> Floats:
        seconds: Floats = self._ns[name].to_numpy()[rows] / 1e9
        return seconds

    def total(self, names: Iterable[str]) -> "pd.Series[float]":
        """Return the sum of several phases' seconds, row by row; a phase that is not recorded counts as 0."""
        return sum((self[name] for name in names if name in self), pd.Series(0.0, index=self._ns.index))


@dataclass
class Steps:
    """The steps of all ranks: one row per rank and step, ordered by both.

    `table` has rank, step, session (the number of the process that logged it), covers (how many steps a row stands
    for), start_ns (Unix time), dur_ns (-1: not recorded), dur_s (NaN: not recorded), residual_ns (outside of phases),
    tokens, loss and grad_norm, the states of both (ABSENT, FINITE or BROKEN), memory_bytes, alloc_retries, tags (joined
    by commas), `tagged` (whether the step did more than train) and `warmup` (bool). `phases` (wall clock), `cpu`
    (processor time) and `device` (the device's clock) have the time of each phase for the same rows. `seqs` has the
    sequence number of the last collective of each process group. `redone` has the earlier rows of steps that were done
    again after a restart. `numbers` has further columns from logs of other trainers, such as `learning_rate`; `logs`
    describes how these logs were read. `unreadable` has the logs that could not be read, and why. `log_counts_from_0`
    says that the numbers of the steps in the script's own log are one less than those in `table`.
    """

    table: pd.DataFrame
    phases: Durations
    cpu: Durations
    device: Durations
    seqs: pd.DataFrame
    redone: pd.DataFrame
    starts: list[ProcessStart]
    world_size: int
    device_type: str
    inputs: list[Input]
    truncated: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unreadable: list[tuple[Artefact, WorkbenchError]] = field(default_factory=list)
    numbers: pd.DataFrame = field(default_factory=pd.DataFrame)
    logs: list[MappedLog] = field(default_factory=list)
    log_counts_from_0: bool = False

    @cached_property
    def ranks(self) -> list[int]:
        return [int(rank) for rank in self._index[0]]

    @cached_property
    def steps(self) -> list[int]:
        """The step numbers that some rank finished, ascending."""
        return [int(step) for step in self._index[1]]

    @property
    def rank_codes(self) -> Column:
        return self._index[2]

    @cached_property
    def _index(self) -> tuple[Column, Column, Column, Column]:
        ranks, rank_codes = np.unique(self.table["rank"].to_numpy(), return_inverse=True)
        steps, step_codes = np.unique(self.table["step"].to_numpy(), return_inverse=True)
        return ranks, steps, narrowed(rank_codes), narrowed(step_codes)

    def grid(self, values: npt.ArrayLike, usable: npt.ArrayLike | None = None) -> pd.DataFrame:
        """Return `values` as a [step, rank] table; NaN if a rank has no usable row of the step.

        `values` has one entry per row of `table`; `usable` is a mask of the rows that count (None: all).
        """
        ranks, steps, _, _ = self._index
        index, columns = pd.Index(steps, name="step"), pd.Index(ranks, name="rank")
        return pd.DataFrame(self.cells(values, usable), index=index, columns=columns)

    def cells(self, values: npt.ArrayLike, usable: npt.ArrayLike | None = None) -> Floats:
        """Return `values` as an array float64[steps, ranks]; NaN if a rank has no usable row of the step.

        `values` has one entry per row of `table`; `usable` is a mask of the rows that count (None: all).
        """
        ranks, steps, rank_codes, step_codes = self._index
        cells = np.full((len(steps), len(ranks)), np.nan)
        numbers = np.asarray(values, dtype=float)
        rows = slice(None) if usable is None else np.asarray(usable)
        cells[step_codes[rows], rank_codes[rows]] = numbers[rows]
        return cells

    def by_rank(self, values: npt.ArrayLike, usable: Mask) -> Floats:
        """Return, for each rank, the median of `values` over its usable rows; NaN if it has none.

        `values` has one entry per row of `table`; `usable` is a mask of the rows that count.
        """
        return _column_medians(self.cells(values, usable))

    def grid_rows(self, steps: pd.Index) -> Integers:
        return np.searchsorted(self._index[1], steps.to_numpy())

    @cached_property
    def plain(self) -> "pd.Series[bool]":
        """A mask of the rows of `table` whose step only trained (no checkpoint, for example) and has a duration."""
        return ~self.table["tagged"] & self.table["dur_s"].notna()

    @cached_property
    def recorder_s(self) -> "pd.Series[float]":
        """For each row of `table`, the seconds of the step that were spent in this project's own recorders."""
        return self.phases.total(RECORDER_PHASES)


# Help to write findings: names of causes, confidence, the log file of a rank, and notes.
#
# A *note* is a finding that is worth knowing but not a fault.

_FIRM_STEPS = 20
"""The number of timed steps from which on a verdict has full confidence."""
SAME_MOMENT = 3
"""Two events count as one if their first steps are at most this many steps apart."""
CAUSE_NAMES: Mapping[Cause, str] = {
    Cause.COMPUTE: "compute",
    Cause.DATA: "data loading",
    Cause.GC: "garbage collection",
    Cause.CHECKPOINT: "saving checkpoints",
    Cause.EVALUATION: "evaluation",
    Cause.LOGGING: "logging",
    Cause.UNRECORDED: "the script's own code, outside of the recorded phases",
    Cause.MIXED: "no single cause",
}


def because_of(cause: Cause) -> str:
    """Return a cause as the end of a clause: ` because of data loading`; empty if there is no single cause."""
    return "" if cause is Cause.MIXED else f" because of {CAUSE_NAMES[cause]}"


def confidence(steps: Steps) -> float:
    """Return the confidence of a verdict on timing, from 0.55 to 0.95.

    It rises with the number of steps and reaches 0.95 at FIRM_STEPS steps on each rank.
    """
    # The rank with the fewest steps limits what can be compared.
    timed = int(steps.table.groupby("rank")["step"].count().min())
    return round(min(0.95, 0.55 + 0.4 * timed / _FIRM_STEPS), 2)


def log_of_rank(steps: Steps, rank: int) -> str:
    return next((log.path for log in steps.inputs if log.rank == rank), "")


def note(
    finding_id: str, title: str, why: str, advice: str, step: int | None = None, ranks: Sequence[int] = ()
) -> Finding:
    """Return a note: a finding of severity INFO, which is worth knowing but not a fault.

    `why` is the explanation, `advice` what to do next. `step` and `ranks` are the step and ranks that the note is
    about, if any.
    """
    return Finding(
        id=finding_id,
        severity=Severity.INFO,
        title=title,
        why=why,
        next=advice,
        ranks=list(ranks),
        step=step,
        confidence=1.0,
    )
