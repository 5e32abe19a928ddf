"""Build a `Job` from a set of dumps: the operations that each rank issued, and their process groups."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from analyzers import run, store
from analyzers.columns import Column, Integers, Mask
from analyzers.errors import WorkbenchError
from analyzers.files import RANKS_AT_MOST
from analyzers.hangs.model import Frame, Job, Lack, Op, Position, RankState, Signature
from analyzers.hangs.reading.p2p import add_messages, decoded, read_message_counts, read_rows
from analyzers.hangs.reading.process_groups import DEFAULT_GROUP, GroupRegistry, Members, find_renewals
from analyzers.hangs.reading.side_files import SideFiles
from analyzers.store import MANY_FILES

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
        self.columns = {name: columns[f"ops.{name}"].view(np.ndarray) for name in (*_OP_COLUMNS, "dump")}
        self.signatures, self.stacks, self.combine = signatures, stacks, combine
        self.launch = _number_launches(self.columns, columns["ops.dump"])
        self.unfinished = unfinished(self.columns["done"], self.launch)

    def newest_ns(self, rows: slice) -> int:
        """Return the newest time in these rows, in nanoseconds since the epoch; 0 without rows."""
        return max(int(self.columns[name][rows].max(initial=0)) for name in ("created_ns", "completed_ns"))


@dataclass(frozen=True, slots=True)
class OpRows:
    """The rows of one rank in the table of its batch.

    `groups` maps the numbers of process groups in the table to indexes in `Job.groups`. `left_out` are rows of process
    groups that the rank has created again since; most ranks have none.
    """

    table: OpTable
    start: int
    stop: int
    rank: int
    groups: Mapping[int, int]
    left_out: frozenset[int] = frozenset()

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
        if self.left_out:
            rows = rows[~np.isin(rows, list(self.left_out))]
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


# Add collective calls that Flight Recorder does not record on gloo: `monitored_barrier`, found in a rank's stack.
#
# Without this call, such a rank has no pending operation and looks idle. The call becomes its first pending
# operation, with the next sequence number of the rank's largest process group, which is nearly always the default
# group. The rank then waits for the ranks that have not reached this number.

_CALLS = {"monitored_barrier"}
_LIBRARY = re.compile(r"[/\\]torch[/\\]distributed[/\\]")
_INNERMOST_FRAMES = 4


def _add_unrecorded_calls(job: Job, side: SideFiles) -> None:
    """Add the call found in a rank's stack as its pending operation, for each rank without a pending operation."""
    for rank, state in job.ranks.items():
        if state.current is None and (name := _call_in(stack := side.main_stack(rank))):
            job.stacks.append(stack)
            state.pending.append(operation(job, state, name))


def _call_in(frames: list[Frame]) -> str | None:
    """Return the collective in a stack that Flight Recorder does not record, such as `monitored_barrier`; else None."""
    innermost = frames[:_INNERMOST_FRAMES]
    return next((f.name for f in innermost if f.name in _CALLS and _LIBRARY.search(f.filename)), None)


def operation(job: Job, state: RankState, name: str) -> Op:
    """Return the call `name`, which Flight Recorder does not record, as a pending operation of the rank of `state`.

    The operation has the same form as a recorded one. Its stack is the last one in `job.stacks`.
    """
    # The call's group is not known; nearly all are in the default group, which is the largest one.
    mine = [i for i, group in enumerate(job.groups) if state.rank in group.ranks]
    group = max(mine, key=lambda i: len(job.groups[i].ranks))
    job.signatures.append(Signature("gloo", name, (), (), (), ()))
    return Op(
        rank=state.rank,
        group=group,
        seq=state.enqueued(group) + 1,
        p2p_seq=0,
        signature=len(job.signatures) - 1,
        stack=len(job.stacks) - 1,
        started=False,
        done=False,
        retired=False,
        created_ns=state.newest_ns,
        completed_ns=0,
        p2p=False,
    )


# Add the roots of collectives from `p2p_R.bin`, a file of this project's recorders; Flight Recorder has no roots.
#
# A row of this file describes one call of a collective with a root (broadcast, reduce, gather, scatter). It has a
# name such as `gather root 2` (the root's rank within the group), the time of the call, and the number of the call
# among all calls with a root that rank R has made in this group. The entry in the dump that belongs to the call was
# created just after this time.

NAME = re.compile(r"(?P<operation>\w+) root (?P<root>\d+)")
OPERATIONS = ("broadcast", "reduce", "gather", "scatter")


class RootedCall(NamedTuple):
    """A rank's call of a collective with a root; `root` is a rank within the group, `time_ns` is before the call."""

    operation: str
    root: int
    time_ns: int


RootedCalls = Mapping[int, RootedCall]
"""{number of a call: the call}, for the calls with a root that a rank made in one group.

The n-th such call in the group has the number n.
"""


def _add_roots(job: Job, side: SideFiles) -> None:
    """Set the roots of collectives in the operations of a job, if they were recorded on all ranks.

    A rank's file has only its last calls. In each group, roots are set only from the first call that is in the files of
    all ranks. The reason: a call with an unknown root would have another signature than the same call on another rank.
    """
    numbers = {signature: number for number, signature in enumerate(job.signatures)}
    known = {rank: _read_roots(path) for rank, path in side.message_files.items() if rank in job.ranks}
    if not any(known.values()):
        return
    for number, group in enumerate(job.groups):
        callers = [rank for rank in group.ranks if rank in job.ranks and _has_rooted(job, rank, number)]
        calls = {rank: known.get(rank, {}).get(group.name, {}) for rank in callers}
        if not callers or not all(calls.values()):
            continue
        first = max(min(numbers) for numbers in calls.values())
        for rank, of_rank in calls.items():
            _set_roots(
                job, numbers, job.ranks[rank], number, [call for n, call in sorted(of_rank.items()) if n >= first]
            )


def _read_roots(path: Path) -> Mapping[str, RootedCalls]:
    """Return a rank's last calls with a root, by the name of the process group, from its `p2p_R.bin` (R: the rank)."""
    calls: dict[str, dict[int, RootedCall]] = defaultdict(dict)
    for number, time_ns, name, _tag, group in read_rows(path):
        if match := NAME.fullmatch(decoded(name)):
            calls[decoded(group)][number] = RootedCall(match["operation"], int(match["root"]), time_ns)
    return calls


def _has_rooted(job: Job, rank: int, group: int) -> bool:
    """Return whether a rank's dump has, in a group, a collective of a kind that takes a root, such as broadcast.

    The root itself may be unknown. `group` is an index in `Job.groups`.
    """
    return any(job.operation(op) in OPERATIONS for op in job.ranks[rank].collectives(group))


def _set_roots(
    job: Job, numbers: dict[Signature, int], state: RankState, group: int, calls: Sequence[RootedCall]
) -> None:
    """Set the roots of a rank's collectives in one group, for the `calls` that are in its dump.

    `state` is changed in place, with copies of the operations. `group` is an index in `Job.groups`; `numbers` maps each
    signature to its index in `Job.signatures`.
    """
    # One iterator for all calls: both are in order of time, and an entry belongs to one call only.
    entries = iter([op for op in state.collectives(group) if job.operation(op) in OPERATIONS])
    for call in calls:
        # Collectives that PyTorch issues by itself have entries, but no calls.
        entry = next((op for op in entries if op.created_ns >= call.time_ns), None)
        if entry and job.operation(entry) == call.operation and call.root < len(job.groups[group].ranks):
            state.replaced[entry] = replace(entry, signature=_signature_with(job, numbers, entry, call.root))
    state.pending = [state.replaced.get(op, op) for op in state.pending]


def _signature_with(job: Job, numbers: dict[Signature, int], op: Op, root: int) -> int:
    """Return the index in `Job.signatures` of the signature of `op` with a root added; append it if it is new.

    `root` is a rank within the group of `op`; `numbers` maps each signature to its index.
    """
    signature = replace(job.signature(op), root=job.groups[op.group].ranks[root])
    if signature not in numbers:
        numbers[signature] = len(job.signatures)
        job.signatures.append(signature)
    return numbers[signature]


READER = "analyzers.hangs.reading.reader"
DUMPS_OF_A_CHILD = 1000
"""The number of dumps that one child process reads at least; it reads less than twice as many.

The more dumps a reader reads, the fewer operations it keeps of each; with this number of dumps it keeps the fewest.
"""


def load_job(
    artefacts: Sequence[run.Artefact],
    side: SideFiles,
    options: store.Options,
    watch: Callable[[Job], None] | None = None,
) -> Job:
    """Return the job that a set of dumps describes; `side` has the contents of the files beside the dumps.

    `artefacts` are the dump files; if several have the dump of one rank, the last one counts. Thousands of dumps are
    read in parts: after some of the parts, `watch` (if given) is called with a job made of what was read so far.
    """
    batches: list[DumpBatch] = []
    unreadable: dict[int, str] = {}
    for read, of_part in _read_batches(artefacts, options):
        unreadable |= of_part.problems() if isinstance(of_part, DumpBatch) else of_part
        batches += [of_part] if isinstance(of_part, DumpBatch) else []
        if watch and _is_first_part(read, len(artefacts), batches):
            watch(_build_job(artefacts, side, batches, unreadable, unread=artefacts[read:]))
    return _build_job(artefacts, side, batches, unreadable)


def _is_first_part(read: int, total: int, batches: Sequence["DumpBatch"]) -> bool:
    """Return whether to show an interim result now: after 1, 2, 4, 8 ... batches of many dumps, but not at the end.

    `read` of `total` dumps have been read, in `batches`. The results become rarer, which keeps their cost low.
    """
    return total > MANY_FILES and read < total and len(batches).bit_count() == 1


def _build_job(
    artefacts: Sequence[run.Artefact],
    side: SideFiles,
    batches: Sequence["DumpBatch"],
    unreadable: dict[int, str],
    unread: Sequence[run.Artefact] = (),
) -> Job:
    """Return the job that `batches` of dumps describe; `side` has the contents of the files beside the dumps.

    `artefacts` are all dump files, `unreadable` has the error of each rank whose dump is damaged, and `unread` are
    dumps that exist but have not been read yet.
    """
    waiting = frozenset(a.rank for a in unread if a.rank is not None)
    job = Job(_find_world_size(side, batches), [], {}, [], [], unreadable, unread=waiting)
    directory = GroupRegistry(job, side.groups.values(), _read_configured_groups(batches))
    loader = Loader(job, directory)
    for batch in batches:
        loader.add(batch)
    _add_groups_of_messages(directory, side)
    directory.infer()
    # Messages and roots name ranks within a group, so all members must be known first.
    _add_roots(job, side)
    add_messages(job, side)
    _add_unrecorded_calls(job, side)
    job.taken_ns = _read_times_taken(job, artefacts)
    return job


def _add_groups_of_messages(directory: GroupRegistry, side: SideFiles) -> None:
    """Add to `directory` the process groups in which ranks only sent and received; these are not in gloo's dumps."""
    for rank, path in side.message_files.items():
        listed = side.groups[rank].groups if rank in side.groups else {}
        for message in read_message_counts(path):
            if message.group in listed:
                directory.number(rank, message.group, listed[message.group].desc)


def _read_times_taken(job: Job, artefacts: Sequence[run.Artefact]) -> dict[int, int]:
    """Return {rank: time at which its dump was written}, in ns since the epoch, from the modification time of its file.

    If a file seems older than the newest operation in it, copying or unpacking has changed the file times; the result
    is then empty.
    """
    times = {a.rank: a.path.stat().st_mtime_ns for a in artefacts if a.rank is not None and a.rank in job.ranks}
    believable = all(times.get(rank, 0) >= state.newest_ns for rank, state in job.ranks.items())
    return times if believable else {}


@dataclass(frozen=True)
class DumpBatch:
    """The dumps that one child process read together, as columns; `ranks[i]` is the rank of the i-th dump.

    `meta` has the facts about each dump, and the lists to which numbers in the columns refer; the docstring of
    `reader.read` describes both.
    """

    columns: dict[str, Column]
    meta: dict[str, Any]
    ranks: list[int]

    def readable(self) -> list[tuple[int, int, dict[str, Any]]]:
        """Return (index in the batch, rank, facts about the dump) of each dump that could be read.

        The facts are the dump's item in the list `meta["dumps"]` that the child process wrote.
        """
        dumps = zip(self.ranks, self.meta["dumps"], strict=True)
        return [(index, rank, dump) for index, (rank, dump) in enumerate(dumps) if "problem" not in dump]

    def problems(self) -> dict[int, str]:
        dumps = zip(self.ranks, self.meta["dumps"], strict=True)
        return {rank: dump["problem"] for rank, dump in dumps if "problem" in dump}


def _read_batches(
    artefacts: Sequence[run.Artefact], options: store.Options
) -> Iterator[tuple[int, DumpBatch | dict[int, str]]]:
    """Yield (number of dumps read so far, next batch of dumps); if a batch is unreadable, {rank: error} in its place.

    One child process reads all dumps, or a part of them if there are thousands. Each part stays in the cache when the
    reading is interrupted. If a hostile file crashes a child process, its part is halved until this file is alone.
    """
    parts = max(1, len(artefacts) // DUMPS_OF_A_CHILD)
    for numbers, columns in store.load_set([a.path for a in artefacts], READER, options, parts):
        named = [artefacts[number].rank or 0 for number in numbers]
        if isinstance(columns, WorkbenchError):
            # Batches are halved until the file that takes the child down is alone.
            yield numbers[-1] + 1, {named[0]: columns.message}
            continue
        dumps = columns.meta["dumps"]
        # Only the dumps of a page name their rank; for all others the file's name has it.
        ranks = [named[dump["path"]] if dump["rank"] is None else dump["rank"] for dump in dumps]
        yield numbers[-1] + 1, DumpBatch(dict(columns), columns.meta, ranks)


def _read_configured_groups(batches: Sequence[DumpBatch]) -> Iterator[tuple[str, Members]]:
    """Yield (name, global ranks) of each process group in the field `pg_config` of the dumps.

    A group that is in several dumps of one batch is yielded once.
    """
    for batch in batches:
        lists = [tuple(sorted(set(members))) for members in batch.meta["members"]]
        yield from ((name, lists[number]) for name, number in sorted(batch.meta["configured"]))


Shapes = tuple[tuple[int, ...], ...]


def _find_world_size(side: SideFiles, batches: Sequence[DumpBatch]) -> int:
    """Return the number of ranks in the job: the recorded number, else the highest rank in any file plus one."""
    recorded = [side.world_size, *(f.world_size for f in side.groups.values())]
    if believable := [size for size in recorded if 0 < size <= RANKS_AT_MOST]:
        return max(believable)
    dumped = [rank for batch in batches for _, rank, _ in batch.readable()]
    members = [max(ranks, default=-1) for batch in batches for ranks in batch.meta["members"]]
    members += [size - 1 for batch in batches for size in _sizes_of_default_group(batch)]
    asked = [rank for number in side.rounds for rank in number.ranks]
    named = [*dumped, *members, *asked, *side.exit_codes, *side.exits, *side.stack_files]
    return max((rank for rank in named if rank < RANKS_AT_MOST), default=-1) + 1


def _sizes_of_default_group(batch: DumpBatch) -> list[int]:
    """Return the number of members of the default group, by each of its operations whose tensors show it.

    The output of an all_gather is as many times as large as its input; the input of a reduce_scatter, as its output.
    """
    default = [number for number, (_, desc) in enumerate(batch.meta["groups"]) if desc == DEFAULT_GROUP]
    used = batch.columns["ops.signature"][np.isin(batch.columns["ops.group"], default)]
    signatures = (batch.meta["signatures"][number] for number in np.unique(used).tolist())
    sizes = [_members_by_size(s[1], nested(s[2]), nested(s[4])) for s in signatures]
    return [size for size in sizes if 1 < size <= RANKS_AT_MOST]


def _members_by_size(operation: str, inputs: Shapes, outputs: Shapes) -> int:
    """Return how many members an operation has by the sizes of its tensors; 0 if they do not show it."""
    large, small = (outputs, inputs) if "all_gather" in operation else (inputs, outputs)
    if "all_gather" not in operation and "reduce_scatter" not in operation:
        return 0
    whole, part = (sum(prod(shape) for shape in shapes) for shapes in (large, small))
    return whole // part if part > 0 and whole % part == 0 else 0


class Loader:
    """Adds batches of dumps to a job.

    Each batch numbers its signatures, stacks and process groups from 0. The job has one list of each for all batches,
    so the loader replaces these numbers by indexes in the job's lists.
    """

    def __init__(self, job: Job, directory: GroupRegistry) -> None:
        self.job, self.directory = job, directory
        self.coalesced: dict[tuple[int, ...], int] = {}

    def add(self, batch: DumpBatch) -> None:
        """Add a `RankState` to the job for each readable dump of a batch."""
        table = self._table(batch)
        # Rows are in the order of the dumps, so those of one dump are a slice.
        bounds = np.searchsorted(batch.columns["ops.dump"], np.arange(len(batch.ranks) + 1)).tolist()
        positions = _positions_by_dump(batch)
        renewals = _find_old_operations(table, bounds, positions)
        for index, rank, dump in batch.readable():
            rows = positions.get(index, [])
            groups = {group: self.directory.number(rank, *batch.meta["groups"][group]) for group, *_ in rows}
            start, stop = bounds[index : index + 2]
            source = OpRows(table, start, stop, rank, groups, renewals.get(index, frozenset()))
            reached = {groups[group]: Position(*rest) for group, *rest in rows}
            newest = table.newest_ns(slice(start, stop))
            self.job.ranks[rank] = RankState(
                rank, source, source.read_pending(), reached, newest, bool(dump["overwritten"])
            )
            for lack in _list_lacks(dump):
                self.job.lacks.setdefault(lack, []).append(rank)

    def _table(self, batch: DumpBatch) -> OpTable:
        """Append a batch's signatures and stacks to the job's lists, and return the batch's table of operations."""
        table = OpTable(batch.columns, len(self.job.signatures), len(self.job.stacks), self._combine)
        self.job.signatures += [
            Signature(s[0], s[1], nested(s[2]), tuple(s[3]), nested(s[4]), tuple(s[5]))
            for s in batch.meta["signatures"]
        ]
        self.job.stacks += [[Frame(*frame) for frame in stack] for stack in batch.meta["stacks"]]
        return table

    def _combine(self, numbers: tuple[int, ...]) -> int:
        """Return the index in `Job.signatures` of one signature for collectives that were launched together.

        `numbers` are the indexes of the signatures of these collectives. The combined signature is appended to the
        list if it is new.
        """
        if numbers not in self.coalesced:
            self.coalesced[numbers] = len(self.job.signatures)
            self.job.signatures.append(_combine_signatures([self.job.signatures[number] for number in numbers]))
        return self.coalesced[numbers]


def _list_lacks(dump: Mapping[str, object]) -> list[Lack]:
    """Return which information is missing in a dump; `dump` has its facts from `meta["dumps"]` (see `reader.read`)."""
    has_entries = bool(dump["entries"])
    lacks: dict[Lack, object] = {
        Lack.STACKS: has_entries and not dump["frames"],
        Lack.COMPLETED_OPERATIONS: has_entries and not dump["done"] and dump["active_only"],
        Lack.FIRST_PENDING_OPERATION: dump["overwritten"],
        Lack.GROUP_NAMES: dump["detail"],
    }
    return [lack for lack, is_lacking in lacks.items() if is_lacking]


def _combine_signatures(signatures: Sequence[Signature]) -> Signature:
    """Return one signature for operations that were launched together, with the tensors of all of them.

    The name joins the names of the operations: `all_gather+reduce_scatter coalesced`. The entry that closes a launch is
    itself named `coalesced`, and adds nothing.
    """
    names = dict.fromkeys(s.operation for s in signatures if s.operation != "coalesced")
    return Signature(
        signatures[0].backend,
        f"{'+'.join(names)} coalesced".strip(),
        tuple(shape for s in signatures for shape in s.input_sizes),
        tuple(dtype for s in signatures for dtype in s.input_dtypes),
        tuple(shape for s in signatures for shape in s.output_sizes),
        tuple(dtype for s in signatures for dtype in s.output_dtypes),
    )


def _positions_by_dump(batch: DumpBatch) -> dict[int, list[tuple[int, ...]]]:
    """Return how far each dump's rank got, as {index of the dump in its batch: a tuple for each process group}.

    A tuple is (number of the group in the batch, first, enqueued, completed); the last three are sequence numbers of
    collectives: the oldest in the dump, the last issued, and the last completed.
    """
    names = ("dump", "group", "first", "enqueued", "completed")
    rows: dict[int, list[tuple[int, ...]]] = {}
    for dump, *rest in zip(*(batch.columns[f"positions.{name}"].tolist() for name in names), strict=True):
        rows.setdefault(dump, []).append(tuple(rest))
    return rows


def _find_old_operations(
    table: OpTable, bounds: Sequence[int], positions: dict[int, list[tuple[int, ...]]]
) -> dict[int, frozenset[int]]:
    """Return {index of a dump: its rows that belong to process groups which its rank has created again since}.

    In `positions`, which is as `_positions_by_dump` returns it, the positions in these groups are replaced by those in
    the newest group of the name. The rows of dump i are those from `bounds[i]` to `bounds[i + 1]`.
    """
    enqueued = {(dump, group): last for dump, rows in positions.items() for group, _first, last, _done in rows}
    renewals = find_renewals(table.columns, enqueued)
    begun_ns: dict[int, int] = {}
    for (_, group), renewal in renewals.items():
        created = int(table.columns["created_ns"][renewal.row])
        begun_ns[group] = min(created, begun_ns.get(group, created))
    left_out: dict[int, frozenset[int]] = {}
    for dump, rows in positions.items() if renewals else ():
        of_dump = slice(*bounds[dump : dump + 2])
        for number, (group, *_reached) in enumerate(rows):
            if group not in begun_ns:
                continue
            mine = of_dump.start + np.flatnonzero(table.columns["group"][of_dump] == group)
            own = renewals.get((dump, group))
            if own is None and (table.columns["created_ns"][mine] >= begun_ns[group]).any():
                continue
            first = own.row if own else of_dump.stop
            rows[number] = (group, *(own.positions if own else (-1, -1, -1)))
            left_out[dump] = left_out.get(dump, frozenset()).union(mine[mine < first].tolist())
    return left_out


def nested(value: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(shape) for shape in value)
