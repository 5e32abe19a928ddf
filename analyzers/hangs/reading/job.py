"""Puts a set of dumps together into a job: what each rank issued, and in which groups."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from analyzers import run, store
from analyzers.errors import WorkbenchError
from analyzers.hangs.model import Frame, Job, Op, Position, RankState, Signature, ops_of
from analyzers.hangs.reading.gloo_messages import add_messages
from analyzers.hangs.reading.process_groups import Directory, Members
from analyzers.hangs.reading.side_files import Side

READER = "analyzers.hangs.reading.reader"
OVERWRITTEN = "the ring (TORCH_FR_BUFFER_SIZE) no longer holds the first unfinished operation"
NO_STACKS = "no stacks in the dump of"


def load_job(artefacts: Sequence[run.Artefact], side: Side, options: store.Options) -> Job:
    """The job that these dumps and their side files show."""
    parts, unreadable = read_set(artefacts, options)
    world = world_size(side, parts)
    job = Job(world, [], {}, [], [], unreadable, {})
    directory = Directory(job, side.groups.values(), configured(parts))
    loader = Loader(job, directory)
    for part in parts:
        loader.add(part)
    directory.infer()
    add_messages(job, side)
    job.taken = taken_ns(job, artefacts)
    return job


def taken_ns(job: Job, artefacts: Sequence[run.Artefact]) -> dict[int, int]:
    """The times of the files, unless one is older than what it reports."""
    times = {a.rank: a.path.stat().st_mtime_ns for a in artefacts if a.rank is not None and a.rank in job.ranks}
    return times if all(times.get(rank, 0) >= state.last_sign_ns() for rank, state in job.ranks.items()) else {}


@dataclass(frozen=True)
class Part:
    """Dumps that were read together. `ranks[i]` is the rank of the i-th."""

    columns: dict[str, "np.ndarray[Any, Any]"]
    meta: dict[str, Any]
    ranks: list[int]

    def dumps(self) -> list[tuple[int, int, dict[str, Any]]]:
        """(index, rank, dump) of those that were readable."""
        return [
            (i, r, d) for i, (r, d) in enumerate(zip(self.ranks, self.meta["dumps"], strict=True)) if "problem" not in d
        ]


def read_set(artefacts: Sequence[run.Artefact], options: store.Options) -> tuple[list[Part], dict[int, str]]:
    """All dumps through one child; one by one where a hostile file takes that child down."""
    parts, unreadable = [], {}
    for numbers, columns in store.load_set([a.path for a in artefacts], READER, options):
        named = [artefacts[number].rank or 0 for number in numbers]
        if isinstance(columns, WorkbenchError):
            unreadable[named[0]] = columns.message
            continue
        dumps = columns.meta["dumps"]
        ranks = [named[dump["path"]] if dump["rank"] is None else dump["rank"] for dump in dumps]
        part = Part(dict(columns), columns.meta, ranks)
        unreadable |= {rank: dump["problem"] for rank, dump in zip(ranks, dumps, strict=True) if "problem" in dump}
        parts.append(part)
    return parts, unreadable


def configured(parts: Sequence[Part]) -> Iterator[tuple[str, Members]]:
    """Name and members of each group that a dump's own map has; thousands of dumps repeat the same ones."""
    for part in parts:
        lists = [tuple(sorted(set(members))) for members in part.meta["members"]]
        told = {(name, number) for _, _, dump in part.dumps() for name, (_, number) in dump["groups"].items()}
        yield from ((name, lists[number]) for name, number in sorted(told))


def world_size(side: Side, parts: Sequence[Part]) -> int:
    known = [side.world_size, *(f.world_size for f in side.groups.values())]
    if max(known):
        return max(known)
    ranks = [rank for part in parts for _, rank, _ in part.dumps()]
    listed = [max(members, default=-1) for part in parts for members in part.meta["members"]]
    rounds = side.collection.rounds if side.collection else []
    asked = [rank for look in rounds for rank in look.ranks]
    return max([*ranks, *listed, *asked, *side.exit_codes, *side.exits, *side.stack_files], default=-1) + 1


class Loader:
    """Takes dumps into a job: numbers of a part become those of the job."""

    def __init__(self, job: Job, directory: Directory) -> None:
        self.job, self.directory = job, directory
        self.coalesced: dict[tuple[int, ...], int] = {}

    def add(self, part: Part) -> None:
        """Take in the ranks of a part."""
        job, offset, stacks = self.job, len(self.job.signatures), len(self.job.stacks)
        job.signatures += [
            Signature(s[0], s[1], nested(s[2]), tuple(s[3]), nested(s[4]), tuple(s[5])) for s in part.meta["signatures"]
        ]
        job.stacks += [[Frame(*frame) for frame in stack] for stack in part.meta["stacks"]]
        columns = {name.removeprefix("ops."): c for name, c in part.columns.items() if name.startswith("ops.")}
        columns["signature"] = columns["signature"] + offset
        columns["stack"] = columns["stack"] + stacks
        bounds = np.searchsorted(columns["dump"], np.arange(len(part.ranks) + 1))
        positions = rows_by_dump(part)
        for index, rank, dump in part.dumps():
            rows = positions.get(index, [])
            groups = {group: self.directory.number(rank, *part.meta["groups"][group]) for group, *_ in rows}
            ops = ops_of(columns, slice(int(bounds[index]), int(bounds[index + 1])), rank, groups)
            ops = [self.one_launch(list(same)) for _, same in groupby(ops, key=launch_of)]
            places = {groups[g]: Position(*rest) for g, *rest in rows}
            self.job.ranks[rank] = RankState(rank, ops, places, dump["overwritten"])
            self.note(rank, dump)

    def one_launch(self, ops: list[Op]) -> Op:
        """Collectives that were launched together share a sequence number: as one operation with all their sizes."""
        if len(ops) == 1:
            return ops[0]
        numbers = tuple(op.signature for op in ops)
        if numbers not in self.coalesced:
            self.coalesced[numbers] = len(self.job.signatures)
            self.job.signatures.append(together([self.job.signatures[number] for number in numbers]))
        first, done = ops[0], all(op.done for op in ops)
        return replace(first, signature=self.coalesced[numbers], done=done, retired=any(op.retired for op in ops))

    def note(self, rank: int, dump: dict[str, Any]) -> None:
        if dump["entries"] and not dump["frames"]:
            self.job.lacks.setdefault(NO_STACKS, []).append(rank)
        if dump["entries"] and not dump["done"] and dump["active_only"]:
            self.job.lacks.setdefault("only unfinished operations in the dump of", []).append(rank)
        if dump["overwritten"]:
            self.job.lacks.setdefault(f"{OVERWRITTEN} of", []).append(rank)
        if dump["detail"]:
            self.job.lacks.setdefault("TORCH_DISTRIBUTED_DEBUG=DETAIL hid the groups of", []).append(rank)


def launch_of(op: Op) -> tuple[int, int, int]:
    """What entries of one launch have in common; sends and receives are put together where their peers are known."""
    return op.group, op.seq, op.p2p_seq if not op.p2p else -1 - id(op)


def together(signatures: Sequence[Signature]) -> Signature:
    """The signature of collectives that were launched as one; the closing entry has no sizes."""
    names = dict.fromkeys(s.operation for s in signatures if s.operation != "coalesced")
    return Signature(
        signatures[0].backend,
        f"{'+'.join(names)} coalesced".strip(),
        tuple(shape for s in signatures for shape in s.input_sizes),
        tuple(dtype for s in signatures for dtype in s.input_dtypes),
        tuple(shape for s in signatures for shape in s.output_sizes),
        tuple(dtype for s in signatures for dtype in s.output_dtypes),
    )


def rows_by_dump(part: Part) -> dict[int, list[tuple[int, ...]]]:
    """{index: [(group, first, enqueued, completed)]}."""
    names = ("dump", "group", "first", "enqueued", "completed")
    rows: dict[int, list[tuple[int, ...]]] = {}
    for dump, *rest in zip(*(part.columns[f"positions.{name}"].tolist() for name in names), strict=True):
        rows.setdefault(dump, []).append(tuple(rest))
    return rows


def nested(value: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(shape) for shape in value)
