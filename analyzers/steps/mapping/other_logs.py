"""Turn the columns of other trainers' logs into steps, and choose which of several files are used."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analyzers import run
from analyzers.columns import Column, Integers
from analyzers.errors import InputError
from analyzers.steps.columns.raw_table import RawTable
from analyzers.steps.mapping.choice import ColumnMap
from analyzers.steps.mapping.steps_of_rows import MappedRows, steps_of_rows
from analyzers.steps.model import MappedLog
from analyzers.words import quantity

_COVERED = 0.5
"""A log is left out if a longer log of the same rank has at least this share of its steps.

An example is the history of steps that a checkpoint contains.
"""
_COLUMNS_NAMED = 20


@dataclass(frozen=True)
class OtherLog:
    """A log of another trainer: its steps, and its rank."""

    artefact: run.Artefact
    rank: int
    rows: MappedRows

    @property
    def steps(self) -> Integers:
        """The step number of each row."""
        return self.rows.content.fixed["step"]


def other_log(
    artefact: run.Artefact,
    rank: int,
    columns: Mapping[str, Column],
    meta: dict[str, object],
    number: int,
    wanted: ColumnMap,
) -> OtherLog:
    """Return an `OtherLog` with the steps of one log of another trainer.

    A child process read several logs together into `columns` and `meta`; the names of this log's columns begin with
    `raw` and its `number`. `wanted` has the (quantity, column) pairs given by the user.
    """
    table = RawTable.from_stored(columns, meta, number)
    return OtherLog(artefact, rank, steps_of_rows(str(artefact.path), table, wanted))


def counting_logs(logs: Sequence[OtherLog]) -> tuple[list[OtherLog], list[str]]:
    """Return the logs to use, in their order, and sentences on the logs that are left out.

    A log is left out if longer logs of the same rank have most of its steps. The list of sentences has at most one
    item.
    """
    covered: dict[int, set[int]] = {}
    counting = []
    for log in sorted(logs, key=lambda log: -len(log.steps)):
        known = covered.setdefault(log.rank, set())
        steps = set(log.steps.tolist())
        if steps and len(steps & known) < _COVERED * len(steps):
            counting.append(log)
            known |= steps
    left_out = [log for log in logs if log not in counting and len(log.steps)]
    kept = [log for log in logs if log in counting]
    names = ", ".join(str(log.artefact.path) for log in left_out[:3])
    return kept, [
        f"{quantity(len(left_out), 'log')} with the same steps as a longer one not used: {names}"
    ] if left_out else []


class UnknownColumn(InputError):
    """Raised if the user named a column, `name`, that no log has."""

    def __init__(self, name: str, known: str) -> None:
        super().__init__(f"--map: no column {name} in these logs", f"columns: {known}")
        self.name = name


def check_map(wanted: ColumnMap, logs: Sequence[MappedLog]) -> None:
    """Check that each column that the user named exists in some log, and has numbers.

    `wanted` has the user's (quantity, column) pairs.

    Raises:
        InputError: A column is missing, or has texts.
    """
    names = {column.name for log in logs for column in log.columns}
    texts = {text for log in logs for text in log.texts}
    for _, name in wanted:
        if name in texts:
            raise InputError(f"--map: the column {name} has no numbers", "choose a column of numbers")
        if name not in names:
            known = (
                ", ".join(sorted(names)[:_COLUMNS_NAMED]) or "none: these logs are of our own or torchtitan's format"
            )
            raise UnknownColumn(name, known)


def _has_rank_column(log: OtherLog) -> bool:
    """Return whether the log has a column with the rank of each row."""
    return bool(np.any(log.rows.content.fixed["rank"] >= 0))
