"""Find the members of each process group: from the recorders' files, the dumps' `pg_config`, or the ranks that used it.

Groups with one name may have different members on different ranks (`split_group` gives such names), so a group is
identified by its name and its members.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from analyzers.columns import Column
from analyzers.files import open_regular
from analyzers.hangs.model import Frame, Group, GroupSource, Job, user_frame
from analyzers.hangs.reading.side_formats import GroupsFile

Members = tuple[int, ...]
"""The global ranks of a process group, in ascending order."""
DEFAULT_GROUP = "default_pg"
"""PyTorch's description of the default process group, which has all ranks."""


@dataclass
class KnownGroup:
    """A process group whose members a file lists; `number` is its index in `Job.groups` once some rank has used it."""

    members: frozenset[int]
    source: GroupSource
    number: int | None = None


class GroupRegistry:
    """The process groups of a job, numbered in the order of their first use in the dumps.

    The number is the index in `Job.groups`. Groups that no rank has used are not in this list.
    """

    def __init__(self, job: Job, files: Iterable[GroupsFile], configured: Iterable[tuple[str, Members]]) -> None:
        self.job = job
        self._known: dict[str, list[KnownGroup]] = {}
        self._inferred: dict[tuple[str, str], int] = {}
        from_files = (
            (name, tuple(sorted(g.ranks)), GroupSource.SIDE_FILE) for file in files for name, g in file.groups.items()
        )
        # Gloo's own map holds one group without a name, whose members are wrong.
        from_dumps = ((name, members, GroupSource.PG_CONFIG) for name, members in configured if name)
        seen: set[tuple[str, Members]] = set()
        for name, members, source in (*from_files, *from_dumps):
            if (name, members) not in seen:
                seen.add((name, members))
                self._known.setdefault(name, []).append(KnownGroup(frozenset(members), source))

    def number(self, rank: int, name: str, desc: str) -> int:
        """Return the index in `Job.groups` of a process group that `rank` has used; append the group if it is new.

        `name` and `desc` (the description) identify the group; both are from a dump.
        """
        known = next((group for group in self._known.get(name, ()) if rank in group.members), None)
        if known is None:
            return self._inferred_number(rank, name, desc)
        if known.number is None:
            known.number = self._append(Group(name, desc, sorted(known.members), known.source))
        return known.number

    def infer(self) -> None:
        """Complete the process groups whose members no file lists; call this method after all dumps were added.

        The members of such a group are the ranks that used it, or all ranks for the default group. A rank without a
        dump also becomes a member under two conditions: all known members wait in one operation, which shows that a
        member is missing; and the rank's number fits the even spacing of the members' ranks in the device mesh.
        """
        groups = [self.job.groups[number] for number in self._inferred.values()]
        for group in groups:
            everyone = range(self.job.world_size) if group.desc == DEFAULT_GROUP else sorted(set(group.ranks))
            # In place, as the job holds this list.
            group.ranks[:] = everyone
        lost = [rank for rank in range(self.job.world_size) if rank not in self.job.ranks]
        for group in groups if lost else []:
            if group.desc != DEFAULT_GROUP and self._is_incomplete(group):
                self._add_lost(group, lost, max(len(other.ranks) for other in groups if other.desc == group.desc))

    def _is_incomplete(self, group: Group) -> bool:
        """Return whether a group seems to lack a member: all ranks that used it wait in the same operation of it."""
        current_ops = [self.job.ranks[rank].current for rank in group.ranks]
        operations = {(current.group, current.seq) if current else None for current in current_ops}
        return len(operations) == 1 and all(
            current and self.job.groups[current.group] is group for current in current_ops
        )

    def _add_lost(self, group: Group, lost: list[int], usual_size: int) -> None:
        """Add ranks without a dump (`lost`) to `group`, which lacks members, if they fit the even spacing of its ranks.

        If more ranks fit than members are missing, they are recorded in `Job.possible_members` instead. `usual_size` is
        the size of the largest group with the same description.
        """
        # Nobody else than a single lost rank can be the one that the group waits for.
        fitting = lost if len(lost) == 1 else [rank for rank in lost if _fits_spacing(group.ranks, rank, usual_size)]
        if len(fitting) <= max(1, usual_size - len(group.ranks)):
            group.ranks[:] = sorted({*group.ranks, *fitting})
        else:
            self.job.possible_members.setdefault(group.label, []).extend(fitting)

    def _inferred_number(self, rank: int, name: str, desc: str) -> int:
        """Return the index in `Job.groups` of a group whose members no file lists, and add `rank` to its members."""
        if (name, desc) not in self._inferred:
            self._inferred[name, desc] = self._append(Group(name, desc, [], GroupSource.ENTRIES))
        self.job.groups[self._inferred[name, desc]].ranks.append(rank)
        return self._inferred[name, desc]

    def _append(self, group: Group) -> int:
        self.job.groups.append(group)
        return len(self.job.groups) - 1


def _fits_spacing(members: list[int], rank: int, usual_size: int) -> bool:
    """Return whether a rank could be a further member of a group, because a mesh spaces the ranks of a group evenly.

    `usual_size` is the size of other groups of this kind. For example, rank 4 fits {0, 2, 6} if groups have 4 members;
    ranks 3 and 8 do not.
    """
    step = min((b - a for a, b in pairwise(members)), default=0)
    if step == 0:
        return True
    extended = [*members, rank]
    in_reach = usual_size == len(members) or max(extended) - min(extended) < step * usual_size
    return in_reach and (rank - members[0]) % step == 0


# Read `new_groups_R.jsonl`: the process groups that rank R created, in order.
#
# The recorder writes a line before each call that creates a group, so the last call in the file may not have
# returned.

_MOST_CALLS = 4096
_LINE_BYTES = 1 << 20
FUNCTIONS = {"new_group", "_new_group_with_tag", "_new_process_group_helper", "split_group"}
"""The functions of PyTorch that create a process group; a rank that is creating one has one of them in its stack."""


class GroupCall(msgspec.Struct):
    """A line of `new_groups_R.jsonl`: a process group that rank R began to create.

    `name` is the group's name, a number that PyTorch counts up (`"3"`). `ranks` are the global ranks of its members,
    and `frames` is the stack of the call, innermost frame first.
    """

    name: str
    ranks: Annotated[list[int], msgspec.Meta(min_length=1)]
    frames: list[Frame] = []


@dataclass(frozen=True)
class NewGroup:
    """A process group that a rank began to create.

    `number` is the group's name as a number; PyTorch counts it up at each creation. `members` are global ranks. `line`
    is the user's frame that made the call, None if the stack has none.
    """

    number: int
    members: tuple[int, ...]
    line: Frame | None
    frames: tuple[Frame, ...] = ()


NewGroups = Mapping[int, NewGroup]
"""{number that PyTorch gave to a process group: what one rank recorded when it created the group}."""


def read_new_groups(path: Path) -> NewGroups:
    """Return the process groups that a rank created, by number, up to the first damaged line of the file.

    The result is empty if the file cannot be read.
    """
    return {group.number: group for group in _calls_of(path)}


def _calls_of(path: Path) -> Iterator[NewGroup]:
    """Yield the process groups that rank R's `new_groups_R.jsonl` lists, in order, up to the first damaged line."""
    try:
        with open_regular(path) as file:
            for _ in range(_MOST_CALLS):
                call = msgspec.json.decode(file.readline(_LINE_BYTES), type=GroupCall)
                members = tuple(sorted(call.ranks))
                yield NewGroup(int(call.name), members, user_frame(call.frames), tuple(call.frames))
    except (OSError, ValueError, msgspec.DecodeError):
        return


def is_making_group(frames: list[Frame]) -> bool:
    """Return whether a stack is in a function of PyTorch that creates a process group."""
    return any(frame.name in FUNCTIONS and "torch" in frame.filename for frame in frames)


# Find the operations of process groups that were destroyed and created again under the same name.
#
# A process may call `destroy_process_group()` and `init_process_group()` again. PyTorch may then give a new group the
# name of an old one, and its sequence numbers begin again. In the ring buffer both look like one group, and the last
# number of the old one like that of a rank which is far ahead:
#
#     rank 0   old #1 #2 #3 #4 #5   new #1 #2 #3 (pending)
#     rank 2   old #1 #2 #3 #4 #5   new #1 #2 (all done)          rank 2 seems to have completed #5
#
# Within one group the numbers of collectives never fall, so a number that is lower than the one before begins a new
# group. A rank that has issued nothing in its new group shows no such fall: there, all operations are old that are
# older than the new group of another rank.

_NEVER = -1


class Renewal(NamedTuple):
    """A process group of one rank that was created again.

    `row` is the first row of the newest group in the table of operations. `positions` are the sequence numbers of its
    collectives: the first, the last that was issued, and the last that completed (-1: none).
    """

    row: int
    positions: tuple[int, int, int]


Place = tuple[int, int]
"""The index of a dump, and the number of a process group in it."""


def find_renewals(columns: Mapping[str, Column], enqueued: Mapping[Place, int]) -> dict[Place, Renewal]:
    """Return the renewal of each process group that a rank created again; mostly empty.

    `columns` is a table of operations in the order of issue, of which each dump may have only the last rows. `enqueued`
    has the highest sequence number of each group in the whole dump.
    """
    collectives = np.flatnonzero(columns["p2p"] == 0)
    dump, group, seq = (columns[name][collectives] for name in ("dump", "group", "seq"))
    order = np.lexsort((group, dump))  # stable: within a group the rows stay in the order of issue
    rows, dump, group, seq = collectives[order], dump[order], group[order], seq[order]
    begins = np.ones(len(rows), bool)
    begins[1:] = (dump[1:] != dump[:-1]) | (group[1:] != group[:-1])
    falls = np.zeros(len(rows), bool)
    falls[1:] = ~begins[1:] & (seq[1:] < seq[:-1])
    starts = np.flatnonzero(begins)
    stops = np.append(starts, len(rows))[1:]
    found: dict[Place, Renewal] = {}
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        key = int(dump[start]), int(group[start])
        fall = np.flatnonzero(falls[start:stop])
        if not len(fall) and seq[stop - 1] >= enqueued.get(key, _NEVER):
            continue
        newest = slice(start + int(fall[-1]) if len(fall) else start, stop)
        done = columns["done"][rows[newest]] != 0
        positions = int(seq[newest][0]), int(seq[newest].max()), int(seq[newest][done].max(initial=_NEVER))
        found[key] = Renewal(int(rows[newest.start]), positions)
    return found
