"""Make the operations of a rank from rows of a table, each time that a rule asks for them.

A job of thousands of ranks has a million completed operations, but a verdict looks at few of them. So the job keeps the
memory-mapped table that the reader wrote. Each rank keeps only the numbers of its first and last row in this table.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from analyzers.columns import Column, Integers, Mask
from analyzers.hangs.model import Op

_OP_COLUMNS = (
    "group", "seq", "p2p_seq", "signature", "stack", "started", "done", "retired", "created_ns", "completed_ns", "p2p",
)  # fmt: skip


class OpTable:
    """The operations in a batch of dumps, one row for each entry; the rows of one dump follow those of another.

    The batch numbers its signatures and stacks from 0. `signatures` and `stacks` are the lengths of the job's lists
    before this batch; they are added to these numbers to get indexes in the job's lists. `combine` is a function that
    returns the number of one combined signature for collectives that were launched together, given the numbers of their
    signatures.
    """

    def __init__(
        self, columns: Mapping[str, Column], signatures: int, stacks: int, combine: Callable[[tuple[int, ...]], int]
    ) -> None:
        # A plain array is several times faster to slice than a memory map, and is mapped all the same.
        self.columns = {name: columns[f"ops.{name}"].view(np.ndarray) for name in _OP_COLUMNS}
        self.signatures, self.stacks, self.combine = signatures, stacks, combine
        self.launch = _number_launches(self.columns, columns["ops.dump"])
        self.unfinished = unfinished(self.columns["done"], self.launch)

    def newest_ns(self, rows: slice) -> int:
        """Return the newest time in these rows, in nanoseconds since the epoch; 0 without rows."""
        return max(int(self.columns[name][rows].max(initial=0)) for name in ("created_ns", "completed_ns"))


@dataclass(frozen=True, slots=True)
class OpRows:
    """The rows of one rank in the table of its batch.

    `groups` maps the numbers of process groups in the table to indexes in `Job.groups`.
    """

    table: OpTable
    start: int
    stop: int
    rank: int
    groups: Mapping[int, int]

    def read(self, group: int | None = None) -> list[Op]:
        """Return the operations of the rank, oldest first; with `group`, an index in `Job.groups`, only those in it."""
        rows = np.arange(self.start, self.stop)
        if group is not None:
            mine = [number for number, index in self.groups.items() if index == group]
            rows = rows[np.isin(self.table.columns["group"][self.start : self.stop], mine)]
        return self._ops(rows)

    def read_pending(self) -> list[Op]:
        """Return the operations of the rank that are not done, oldest first."""
        return self._ops(self.start + np.flatnonzero(self.table.unfinished[self.start : self.stop]))

    def _ops(self, rows: Integers) -> list[Op]:
        # Lists are several times faster to walk than arrays.
        lists = [self.table.columns[name][rows].tolist() for name in _OP_COLUMNS]
        signatures, stacks, groups, rank = self.table.signatures, self.table.stacks, self.groups, self.rank
        ops = [
            Op(rank, groups[g], n, p2p_n, signatures + sig, stacks + stack, bool(started), bool(done), bool(retired),
               made, ended, bool(p2p))
            for g, n, p2p_n, sig, stack, started, done, retired, made, ended, p2p in zip(*lists, strict=True)
        ]  # fmt: skip
        launches = self.table.launch[rows].tolist()
        if len(set(launches)) == len(launches):
            return ops
        together = groupby(zip(launches, ops, strict=True), key=lambda pair: pair[0])
        return [self._one_operation([op for _, op in pairs]) for _, pairs in together]

    def _one_operation(self, ops: list[Op]) -> Op:
        """Return the collectives `ops`, which NCCL launched together (coalesced), as a single operation.

        They have one sequence number in the dump.
        """
        if len(ops) == 1:
            return ops[0]
        signature = self.table.combine(tuple(op.signature for op in ops))
        done, retired = all(op.done for op in ops), any(op.retired for op in ops)
        return replace(ops[0], signature=signature, done=done, retired=retired)


def _number_launches(columns: Mapping[str, Column], dump: Column) -> Integers:
    """Return a launch number for each row, from 0; collectives of one coalesced launch share a number.

    `columns` are those of the table of operations; `dump` is the index of each row's dump. Each send or receive gets a
    number of its own; `p2p.find_batch` combines them later, when their peers are known.
    """
    p2p = columns["p2p"].astype(bool)
    begins = np.ones(len(p2p), bool)
    begins[1:] = p2p[1:] | p2p[:-1]
    for column in (dump, columns["group"], columns["seq"], columns["p2p_seq"]):
        begins[1:] |= column[1:] != column[:-1]
    return np.cumsum(begins) - 1


def unfinished(done: Column, launch: Integers) -> Mask:
    """Return a mask of the rows whose launch is not done; a launch is done when all of its operations are.

    `done` is 0 for each operation that has not completed; `launch` is the number of each row's launch.
    """
    waiting = np.zeros(int(launch.max(initial=-1)) + 1, bool)
    waiting[launch[done == 0]] = True
    mask: Mask = waiting[launch]
    return mask
