"""Who is in which process group: by the ranks' side files, by the dumps' own maps, or by who used it.

One name may have different members on different ranks, so both are a group's identity.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from analyzers.hangs.model import Group, Job
from analyzers.hangs.reading.side_formats import GroupsFile

Members = tuple[int, ...]
"""Global ranks, ascending."""


@dataclass
class Known:
    """A group that some map tells of; `number` is the job's, once a rank has used it."""

    members: frozenset[int]
    source: str
    number: int | None = None


class Directory:
    """Gives the groups of a job their numbers."""

    def __init__(self, job: Job, files: Iterable[GroupsFile], configured: Iterable[tuple[str, Members]]) -> None:
        self.job = job
        self._known: dict[str, list[Known]] = {}
        self._inferred: dict[tuple[str, str], int] = {}
        told = ((name, tuple(sorted(g.ranks)), "side file") for file in files for name, g in file.groups.items())
        # Gloo's map of its groups is one without a name.
        listed = ((name, members, "pg_config") for name, members in configured if name)
        seen: set[tuple[str, Members]] = set()
        for name, members, source in (*told, *listed):
            if (name, members) not in seen:
                seen.add((name, members))
                self._known.setdefault(name, []).append(Known(frozenset(members), source))

    def number(self, rank: int, name: str, desc: str) -> int:
        """The job's number for a rank's group."""
        known = next((one for one in self._known.get(name, ()) if rank in one.members), None)
        if known is None:
            return self._used(rank, name, desc)
        if known.number is None:
            known.number = self._new(Group(name, desc, sorted(known.members), known.source))
        return known.number

    def infer(self) -> None:
        """A group that no map knows has the members that used it; the default group has everyone."""
        groups = [self.job.groups[number] for number in self._inferred.values()]
        for group in groups:
            everyone = range(self.job.world_size) if group.desc == "default_pg" else sorted(set(group.ranks))
            group.ranks[:] = everyone
        lost = [rank for rank in range(self.job.world_size) if rank not in self.job.ranks]
        for group in groups if lost else []:
            if group.desc != "default_pg" and self._lacks_somebody(group):
                self._fill(group, lost, max(len(other.ranks) for other in groups if other.desc == group.desc))

    def _lacks_somebody(self, group: Group) -> bool:
        """Whether all that used a group stand in one operation of it: with everybody there it would complete."""
        fronts = [self.job.ranks[rank].front for rank in group.ranks]
        places = {(front.group, front.seq) if front else None for front in fronts}
        return len(places) == 1 and all(front and self.job.groups[front.group] is group for front in fronts)

    def _fill(self, group: Group, lost: list[int], usual: int) -> None:
        """Add the ranks without a dump that must be in a group; where several may be, say so."""
        fitting = lost if len(lost) == 1 else [rank for rank in lost if fits(group.ranks, rank, usual)]
        if len(fitting) <= max(1, usual - len(group.ranks)):
            group.ranks[:] = sorted({*group.ranks, *fitting})
        else:
            self.job.lacks.setdefault(f"no map of groups: {group.label} may lack any of", []).extend(fitting)

    def _used(self, rank: int, name: str, desc: str) -> int:
        """The number of a group of which only is known who used it."""
        if (name, desc) not in self._inferred:
            self._inferred[name, desc] = self._new(Group(name, desc, [], "entries"))
        self.job.groups[self._inferred[name, desc]].ranks.append(rank)
        return self._inferred[name, desc]

    def _new(self, group: Group) -> int:
        self.job.groups.append(group)
        return len(self.job.groups) - 1


def fits(members: list[int], rank: int, usual: int) -> bool:
    """Whether a rank could stand among members that a mesh spaces evenly; `usual` is how many such groups have."""
    step = min((b - a for a, b in pairwise(members)), default=0)
    if step == 0:
        return True
    whole = [*members, rank]
    in_reach = usual == len(members) or max(whole) - min(whole) < step * usual
    return in_reach and (rank - members[0]) % step == 0
