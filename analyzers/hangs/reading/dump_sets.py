"""Which dumps tell the hang: of all that lie in a folder those that were taken in time, one a rank."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from analyzers import run
from analyzers.hangs.reading.debug_server import holds_many
from analyzers.hangs.reading.exits import is_victim
from analyzers.hangs.reading.side_files import Side, base_of, gather
from analyzers.hangs.reading.side_formats import Collection

SET = re.compile(r"set_(\d+)")
NODES_APART_S = 300.0
"""Nodes notice the same hang within a step's time of each other; sets of different hangs are a timeout apart."""


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
    texts = sorted((a for a in pages if ".txt" in a.path.suffixes), key=lambda a: a.path.name)
    pages = [a for a in pages if a not in texts[:-1]]
    pages.sort(key=lambda a: ("json" in a.path.name, a.path.stat().st_mtime))
    return [*(run.Artefact(a.path, a.kind, rank, a.step, a.exit, a.bytes) for rank, a in own.items()), *pages]


def rank_of(artefact: run.Artefact) -> int | None:
    """The rank that its name speaks of, else the last number in the name."""
    numbers = re.findall(r"\d+", artefact.path.name)
    return artefact.rank if artefact.rank is not None else int(numbers[-1]) if numbers else None
