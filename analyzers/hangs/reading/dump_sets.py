"""Select the dumps that show a hang: one set out of all sets of dumps in a run, and one dump for each rank from it.

A *set* holds all dumps that were taken because of one hang; a job that hangs twice has two sets. A set may have several
*rounds*: in each round, every rank is asked once for its dump. A set that was taken after ranks had timed out shows
their abort, not the hang, so an earlier set is preferred.
"""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from analyzers.files import rank_in
from analyzers.hangs.reading.debug_server import holds_many
from analyzers.hangs.reading.exits import is_victim
from analyzers.hangs.reading.side_files import SideFiles, base_of, read_side_files
from analyzers.hangs.reading.side_formats import AnswerStatus, Collection, CollectionReason
from analyzers.run import Artefact, Kind, Run

_SET = re.compile(r"set_(\d+)")
_NODES_APART_S = 300.0
"""The longest time in seconds between two sets of dumps, from different nodes, that belong to one hang.

All nodes notice a hang within one step, while two hangs are at least a timeout apart.
"""

Rounds = dict[int, list[Artefact]]
"""{number of the round: its dumps}, for the dumps of a set; each round asked every rank once for its dump."""


@dataclass(frozen=True)
class DumpSet:
    """The dumps of one hang; `folders` has the folder of each node whose ranks left dumps.

    `rounds[i]` has the dumps of one round, in which every rank was asked once; the oldest round comes first. `outdated`
    are ranks without a dump here because all of their dumps are from before the last restart of the job.
    """

    folders: tuple[Path, ...]
    rounds: list[list[Artefact]]
    outdated: frozenset[int] = frozenset()


def open_set(run: Run) -> tuple[DumpSet, SideFiles]:
    """Return the set of dumps that shows the hang, and the contents of the files beside these dumps.

    A round is one request to all ranks. Rounds from before the hang began, or from before all ranks had started, are
    left out.
    """
    dumps = _newest_set(run)
    side = replace(read_side_files(run, dumps.folders), outdated=dumps.outdated)
    skipped = max(_rounds_before_hang(side), _rounds_before_start(side))
    if not skipped:
        return dumps, side
    later = DumpSet(dumps.folders, dumps.rounds[skipped:] or dumps.rounds[-1:])
    return later, read_side_files(run, dumps.folders, first_round=skipped + 1)


_DUMP = re.compile(r"rank_?(\d+)(?:\.json)?")


def unreadable_dumps(run: Run, dumps: DumpSet, ranks: Container[int]) -> dict[int, str]:
    """Return {rank: why its dump could not even be opened}, for the ranks in `ranks` whose dump file is unusable.

    No dump was read of the given `ranks`. Reasons are, for example, a missing permission, an empty file, or something
    that is not a regular file.
    """
    closed = [(_DUMP.fullmatch(path.name), reason) for path, reason in run.unreadable if path.parent in dumps.folders]
    numbers = [(rank_in(match[1]), reason) for match, reason in closed if match]
    return {rank: reason for rank, reason in numbers if rank is not None and rank in ranks}


def _rounds_before_hang(side: SideFiles) -> int:
    """Return how many rounds of dumps (requests to all ranks) were taken before the hang began.

    The first rank to time out was stuck in the step and phase in which it ended. So the hang had begun by the first
    round in which the heartbeat of this rank shows this step and phase. The result is the index of this round, or 0 if
    there is no such round.
    """
    ends = (end for end in side.exits.values() if is_victim(end))
    first = min(ends, key=lambda end: end.time_ns, default=None)
    if first is None:
        return 0
    beats = [answer.heartbeat if (answer := number.ranks.get(first.rank)) else None for number in side.rounds]
    same = (i for i, beat in enumerate(beats) if beat and (beat.step, beat.phase) == (first.step, first.phase))
    return next(same, 0)


def _rounds_before_start(side: SideFiles) -> int:
    """Return how many rounds of dumps, counted from the first, were taken while some ranks had not yet registered.

    A rank registers by writing a file with the address for requests of its dump. Rounds before that do not show the
    hang. The result is 0 if ranks were missing in every round.
    """
    late = [AnswerStatus.UNREGISTERED in {answer.status for answer in number.ranks.values()} for number in side.rounds]
    return late.index(False) if False in late else 0


def _newest_set(run: Run) -> DumpSet:
    """Return the newest set of dumps in a run that was taken before ranks timed out.

    Each hang of a job has its own set. If all sets were taken too late, the first set is returned. Sets from before the
    job's last restart are used only if there is no other set, and no file shows how ranks ended after the restart; if
    such a file exists, the result has no dumps.
    """
    sets: dict[Path, Rounds] = {}
    for artefact in run.of(Kind.FLIGHT):
        base, number = base_of(artefact.path)
        sets.setdefault(base, {}).setdefault(number, []).append(artefact)
    if not sets:
        folders = [a.path.parent for a in run.of(Kind.COLLECTION, Kind.EXIT, Kind.GROUPS)]
        return DumpSet((folders[-1] if folders else run.root,), [[]])
    sides = {base: read_side_files(run, [base]) for base in sets}
    last = {base: side for base, side in sides.items() if not _is_of_earlier_attempt(side)}
    if not last and any(side.exits or side.exit_codes for side in sides.values()):
        artefacts = (a for rounds in sets.values() for artefacts in rounds.values() for a in artefacts)
        return DumpSet((), [[]], frozenset(a.rank for a in artefacts if a.rank is not None))
    # If nothing shows how the last attempt ended, the hang of an earlier one is all that is known.
    sides = last or sides
    sets = {base: sets[base] for base in sides}
    in_time = [base for base in sets if not _is_aftermath(sides[base], sides.values())]
    # If every set was taken too late, the first is best: ranks that give up later are in it, too.
    is_late, in_time = not in_time, in_time or list(sets)
    # The folders' numbers come before the files' times, which copying may have changed.
    in_time.sort(key=lambda base: (_set_number(base), _newest_s(sets[base])), reverse=not is_late)
    bases = _taken_together(in_time, sets)
    numbers = sorted({number for base in bases for number in sets[base]})
    rounds = [[a for base in bases for a in sets[base].get(number, [])] for number in numbers]
    return DumpSet(tuple(bases), [_one_per_rank(artefacts) for artefacts in rounds])


def _taken_together(bases: Sequence[Path], sets: Mapping[Path, Rounds]) -> list[Path]:
    """Return the first folder in `bases`, and the folders with dumps of other ranks from about the same time.

    Each node has its own collector (the process that requests dumps), which writes the dumps of the node's ranks into a
    folder of its own; these folders together are one set. `sets` has the dumps in each folder, by round.
    """
    together: list[Path] = []
    ranks: set[int] = set()
    for base in bases:
        here = {rank for artefacts in sets[base].values() for a in artefacts if (rank := rank_of(a)) is not None}
        is_other_node = here.isdisjoint(ranks)
        if not together or (
            is_other_node and abs(_newest_s(sets[base]) - _newest_s(sets[together[0]])) < _NODES_APART_S
        ):
            together.append(base)
            ranks |= here
    return together


def _is_of_earlier_attempt(side: SideFiles) -> bool:
    """Return whether a set of dumps was taken before the last restart of the job; `side` has the files beside it.

    An attempt is one start of all ranks. `collection.json` has the number of the attempt in which the dumps were taken;
    the ranks' group files have the number of the last attempt.
    """
    last = max((file.attempt for file in side.groups.values()), default=0)
    return side.collection is not None and side.collection.attempt is not None and side.collection.attempt < last


def _is_aftermath(side: SideFiles, others: Iterable[SideFiles]) -> bool:
    """Return whether a set of dumps was taken after ranks had timed out, so that an earlier set shows more.

    After an error the failed operation may be flagged as done. `side` has the files beside this set, `others` the files
    beside all sets of the run.
    """
    if side.collection is None:
        return False
    asked_ns = side.collection.asked_ns
    if any(is_victim(end) and end.time_ns < asked_ns for end in side.exits.values()):
        return True
    return any(other.collection and _timed_out(other.collection, side.collection) for other in others)


def _timed_out(stall: Collection, later: Collection) -> bool:
    """Return whether ranks that hung when dumps were collected (`stall`) had timed out when `later` was collected.

    Three conditions must hold: the timeout had passed; at least one rank had exited; and no exited rank had made
    progress after `stall`. NCCL's watchdog ends a rank without any message, so nothing else shows that such a rank is a
    victim of the hang.
    """
    # A stall is noticed some time after it began; only the rest of the timeout was left then.
    left_s = (stall.timeout_s or 0) - (stall.stalled_s or 0)
    if stall.reason != CollectionReason.STALLED or later.asked_ns < stall.asked_ns + left_s * 1e9:
        return False
    answers = later.rounds[0].ranks.values() if later.rounds else []
    ended = [answer for answer in answers if answer.status == AnswerStatus.EXITED]
    return bool(ended) and all(answer.heartbeat and answer.heartbeat.time_ns < stall.asked_ns for answer in ended)


def _newest_s(rounds: Rounds) -> float:
    """Return when the last dump of a set was written, in seconds since the epoch; `rounds` has its dump files."""
    return max(artefact.path.stat().st_mtime for artefacts in rounds.values() for artefact in artefacts)


def _set_number(base: Path) -> int:
    match = _SET.fullmatch(base.name)
    return int(match[1]) if match else 1


def _one_per_rank(artefacts: Sequence[Artefact]) -> list[Artefact]:
    """Return the newest dump file of each rank, with the rank filled in, then the files with the dumps of many ranks.

    For one rank, a pickle is preferred to JSON, because JSON has no frames. Files with many ranks are saved pages of
    PyTorch's debug server (HTML tables or JSON), and texts that the server writes every minute; only the newest text is
    returned. The caller loads the files in this order, and a later file replaces the dump of a rank in an earlier one.
    So JSON pages, which have more data than tables, come last.
    """
    best: dict[int, Artefact] = {}
    # In a dict by rank the last one wins.
    for artefact in sorted(artefacts, key=lambda a: (a.path.suffix != ".json", a.path.stat().st_mtime)):
        if (rank := rank_of(artefact)) is not None:
            best[rank] = artefact
    pages = [a for a in artefacts if holds_many(a.path)]
    own = {rank: a for rank, a in sorted(best.items()) if a not in pages}
    texts = sorted((a for a in pages if ".txt" in a.path.suffixes), key=lambda a: a.path.name)
    pages = [a for a in pages if a not in texts[:-1]]
    pages.sort(key=lambda a: ("json" in a.path.name, a.path.stat().st_mtime))
    return [*(Artefact(a.path, a.kind, rank, a.step, a.exit, a.bytes) for rank, a in own.items()), *pages]


def rank_of(artefact: Artefact) -> int | None:
    numbers = re.findall(r"\d+", artefact.path.name)
    return artefact.rank if artefact.rank is not None else int(numbers[-1]) if numbers else None
