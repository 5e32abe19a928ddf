"""Puts a set of dumps together: which files belong to it, which rank each is of, who is in which group."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from analyzers import run, store
from analyzers.errors import WorkbenchError
from analyzers.hangs.ends import is_victim
from analyzers.hangs.files import Collection
from analyzers.hangs.messages import add_messages
from analyzers.hangs.model import Frame, Group, Job, Op, Position, RankState, Signature, ops_of
from analyzers.hangs.pages import holds_many
from analyzers.hangs.side import Side, base_of, gather

READER = "analyzers.hangs.read"
SET = re.compile(r"set_(\d+)")
NODES_APART_S = 300.0
"""Nodes notice the same hang within a step's time of each other; sets of different hangs are a timeout apart."""

OVERWRITTEN = "the ring (TORCH_FR_BUFFER_SIZE) no longer holds the first unfinished operation"
NO_STACKS = "no stacks in the dump of"

Members = tuple[tuple[int, ...], str]
"""Global ranks of a group, and where they are known from."""


@dataclass(frozen=True)
class DumpSet:
    """The dumps of one hang: `rounds[i]` is the i-th look at it. The collector of each node fills a folder."""

    folders: tuple[Path, ...]
    rounds: list[list[run.Artefact]]


def open_set(found: run.Run) -> tuple[DumpSet, Side]:
    """The set of dumps that tells the hang and what lies beside it, without looks from before the hang began."""
    dumps = newest_set(found)
    side = gather(found, dumps.folders)
    skip = looks_before(side)
    if not skip:
        return dumps, side
    late = DumpSet(dumps.folders, dumps.rounds[skip:] or dumps.rounds[-1:])
    return late, gather(found, dumps.folders, first_look=skip + 1)


def looks_before(side: Side) -> int:
    """How many looks the first rank to give up was seen elsewhere in, before one that shows it where it gave up."""
    gave_up = min((gone for gone in side.exits.values() if is_victim(gone)), key=lambda g: g.time_ns, default=None)
    looks = side.collection.rounds if side.collection and gave_up else []
    beats = [asked.heartbeat if gave_up and (asked := look.ranks.get(gave_up.rank)) else None for look in looks]
    there = (i for i, b in enumerate(beats) if gave_up and b and (b.step, b.phase) == (gave_up.step, gave_up.phase))
    return next(there, 0)


def newest_set(found: run.Run) -> DumpSet:
    """The last set of dumps in a folder that was taken in time; each hang has its own."""
    sets: dict[Path, dict[int, list[run.Artefact]]] = {}
    for artefact in found.of(run.Kind.FLIGHT):
        base, number = base_of(artefact.path)
        sets.setdefault(base, {}).setdefault(number, []).append(artefact)
    if not sets:
        folders = [a.path.parent for a in found.of(run.Kind.COLLECTION, run.Kind.EXIT, run.Kind.GROUPS)]
        return DumpSet((folders[-1] if folders else found.root,), [[]])
    sides = {base: gather(found, [base]) for base in sets}
    known = [base for base in sets if not is_aftermath(sides[base], sides.values())] or list(sets)
    known.sort(key=lambda b: (set_number(b), newest(sets[b])), reverse=True)
    chosen = at_one_time(known, sets)
    numbers = sorted({number for base in chosen for number in sets[base]})
    looks = [[a for base in chosen for a in sets[base].get(number, [])] for number in numbers]
    return DumpSet(tuple(chosen), [one_a_rank(look) for look in looks])


def at_one_time(bases: Sequence[Path], sets: dict[Path, dict[int, list[run.Artefact]]]) -> list[Path]:
    """The first set, and those of other ranks taken at about the same time: each node has a collector of its own."""
    chosen: list[Path] = []
    ranks: set[int] = set()
    for base in bases:
        here = {rank for look in sets[base].values() for a in look if (rank := rank_of(a)) is not None}
        if not chosen or (here.isdisjoint(ranks) and abs(newest(sets[base]) - newest(sets[chosen[0]])) < NODES_APART_S):
            chosen.append(base)
            ranks |= here
    return chosen


def is_aftermath(side: Side, others: Iterable[Side]) -> bool:
    """Whether a set was taken when ranks had already given up waiting: its flags lie, and an earlier set tells more."""
    if side.collection is None:
        return False
    asked_ns = side.collection.asked_ns
    if any(is_victim(gone) and gone.time_ns < asked_ns for gone in side.exits.values()):
        return True
    return any(other.collection and timed_out(other.collection, side.collection) for other in others)


def timed_out(stall: Collection, later: Collection) -> bool:
    """Whether ranks that had ended at a later set had last moved before a stall whose timeout had passed by then.

    NCCL's watchdog ends a rank without a word.
    """
    left_s = (stall.timeout_s or 0) - (stall.stalled_s or 0)
    if stall.reason != "stalled" or later.asked_ns < stall.asked_ns + left_s * 1e9:
        return False
    ended = [asked for asked in later.rounds[0].ranks.values() if asked.status == "exited"] if later.rounds else []
    return bool(ended) and all(asked.heartbeat and asked.heartbeat.time_ns < stall.asked_ns for asked in ended)


def newest(looks: dict[int, list[run.Artefact]]) -> float:
    """When the last dump of a set was written."""
    return max(artefact.path.stat().st_mtime for look in looks.values() for artefact in look)


def set_number(base: Path) -> int:
    found = SET.fullmatch(base.name)
    return int(found[1]) if found else 1


def one_a_rank(artefacts: Sequence[run.Artefact]) -> list[run.Artefact]:
    """One dump a rank, with a rank each: a pickle has frames, so it goes before JSON; the newest goes first.

    Pages of PyTorch's debug server, which hold the dumps of many ranks, come as they are, those of JSON last, as they
    say more than tables; of the texts that it writes every minute only the newest.
    """
    best: dict[int, run.Artefact] = {}
    for artefact in sorted(artefacts, key=lambda a: (a.path.suffix != ".json", a.path.stat().st_mtime)):
        if (rank := rank_of(artefact)) is not None:
            best[rank] = artefact
    pages = [a for a in artefacts if holds_many(a.path)]
    own = {rank: a for rank, a in sorted(best.items()) if a not in pages}
    texts = sorted((a for a in pages if a.path.suffix == ".txt"), key=lambda a: a.path.name)
    pages = [a for a in pages if a not in texts[:-1]]
    pages.sort(key=lambda a: ("json" in a.path.name, a.path.stat().st_mtime))
    return [*(run.Artefact(a.path, a.kind, rank, a.step, a.exit, a.bytes) for rank, a in own.items()), *pages]


def rank_of(artefact: run.Artefact) -> int | None:
    """The rank that its name speaks of, else the last number in the name."""
    numbers = re.findall(r"\d+", artefact.path.name)
    return artefact.rank if artefact.rank is not None else int(numbers[-1]) if numbers else None


def load_job(artefacts: Sequence[run.Artefact], side: Side, options: store.Options) -> Job:
    """The job that these dumps and their side files show."""
    parts, unreadable = read_set(artefacts, options)
    world = world_size(side, parts)
    job = Job(world, [], {}, [], [], unreadable, {})
    directory = Directory(job, side, parts)
    for part in parts:
        directory.add(part)
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


def world_size(side: Side, parts: Sequence[Part]) -> int:
    known = [side.world_size, *(f.world_size for f in side.groups.values())]
    if max(known):
        return max(known)
    ranks = [rank for part in parts for _, rank, _ in part.dumps()]
    listed = [max(members, default=-1) for part in parts for members in part.meta["members"]]
    rounds = side.collection.rounds if side.collection else []
    asked = [rank for look in rounds for rank in look.ranks]
    return max([*ranks, *listed, *asked, *side.exit_codes, *side.exits, *side.stack_files], default=-1) + 1


class Directory:
    """Resolves process groups. One name may have different members on different ranks, so both are its identity."""

    def __init__(self, job: Job, side: Side, parts: Sequence[Part]) -> None:
        self.job = job
        self.side = side
        self.numbers: dict[tuple[str, tuple[int, ...]], int] = {}
        self.inferred: dict[tuple[str, str], int] = {}
        self.configured: dict[str, list[tuple[int, ...]]] = {}
        self.coalesced: dict[tuple[int, ...], int] = {}
        for part in parts:
            lists = [tuple(sorted(set(members))) for members in part.meta["members"]]
            for _, _, dump in part.dumps():
                for name, (_, number) in dump["groups"].items():
                    known = self.configured.setdefault(name, [])
                    if lists[number] not in known:
                        known.append(lists[number])

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
            groups = {group: self.number(rank, *part.meta["groups"][group]) for group, *_ in rows}
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

    def number(self, rank: int, name: str, desc: str) -> int:
        """The job's number for a rank's group."""
        members, source = self.members(rank, name)
        if not members:
            number = self.inferred.get((name, desc))
            if number is None:
                number = self.inferred[name, desc] = self.new(Group(name, desc, [], "entries"))
            self.job.groups[number].ranks.append(rank)
            return number
        key = (name, members)
        if key not in self.numbers:
            self.numbers[key] = self.new(Group(name, desc, list(members), source))
        return self.numbers[key]

    def new(self, group: Group) -> int:
        self.job.groups.append(group)
        return len(self.job.groups) - 1

    def members(self, rank: int, name: str) -> Members:
        """From the rank's side file, another rank's, the dumps' own map; empty when none knows."""
        own = self.side.groups.get(rank)
        for file in [own, *self.side.groups.values()] if own else self.side.groups.values():
            if file and name in file.groups and rank in file.groups[name].ranks:
                return tuple(sorted(file.groups[name].ranks)), "side file"
        for members in self.configured.get(name, []):
            if name and rank in members:
                return members, "pg_config"
        return (), ""

    def infer(self) -> None:
        """A group that no map knows has the members that used it; the default group has everyone."""
        for (_, desc), number in self.inferred.items():
            ranks = self.job.groups[number].ranks
            ranks[:] = range(self.job.world_size) if desc == "default_pg" else sorted(set(ranks))


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
