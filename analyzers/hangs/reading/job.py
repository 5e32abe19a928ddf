"""Build a `Job` from a set of dumps: the operations that each rank issued, and their process groups."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analyzers import run, store
from analyzers.columns import Column
from analyzers.errors import WorkbenchError
from analyzers.files import RANKS_AT_MOST
from analyzers.hangs.model import Frame, Job, Lack, Position, RankState, Signature
from analyzers.hangs.reading.gloo_messages import add_messages, read_message_counts
from analyzers.hangs.reading.op_rows import OpRows, OpTable
from analyzers.hangs.reading.process_groups import GroupRegistry, Members
from analyzers.hangs.reading.roots import add_roots
from analyzers.hangs.reading.side_files import SideFiles
from analyzers.hangs.reading.unrecorded_calls import add_unrecorded_calls
from analyzers.progress import MANY_FILES

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
    add_roots(job, side)
    add_messages(job, side)
    add_unrecorded_calls(job, side)
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
        """Return {rank: why its dump could not be read}."""
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


def _find_world_size(side: SideFiles, batches: Sequence[DumpBatch]) -> int:
    """Return the number of ranks in the job: the recorded number, else the highest rank in any file plus one."""
    recorded = [side.world_size, *(f.world_size for f in side.groups.values())]
    if believable := [size for size in recorded if 0 < size <= RANKS_AT_MOST]:
        return max(believable)
    dumped = [rank for batch in batches for _, rank, _ in batch.readable()]
    members = [max(ranks, default=-1) for batch in batches for ranks in batch.meta["members"]]
    asked = [rank for number in side.rounds for rank in number.ranks]
    named = [*dumped, *members, *asked, *side.exit_codes, *side.exits, *side.stack_files]
    return max((rank for rank in named if rank < RANKS_AT_MOST), default=-1) + 1


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
        for index, rank, dump in batch.readable():
            rows = positions.get(index, [])
            groups = {group: self.directory.number(rank, *batch.meta["groups"][group]) for group, *_ in rows}
            start, stop = bounds[index : index + 2]
            source = OpRows(table, start, stop, rank, groups)
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


def nested(value: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    """Return a list of lists as a tuple of tuples, which can be compared and hashed."""
    return tuple(tuple(shape) for shape in value)
