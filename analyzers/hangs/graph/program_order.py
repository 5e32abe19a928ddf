"""Where a rank left the program that its sisters run: it left an operation out, swapped two, or issued another one."""

from dataclasses import dataclass
from typing import Any

from analyzers.hangs.graph.signatures import comparable
from analyzers.hangs.model import Job, Op, user_frame

SISTERS_A_GROUP = 6
FORESEEN = 6
"""Operations that are guessed from earlier steps when a sister stopped short of issuing them."""
MEMORY = 12
"""How many operations before one tell which comes next."""
LAUNCHED_AT_ONCE = 4
"""Entries that one launch may consist of: a batch of sends and receives."""

Keys = list[int]


@dataclass(frozen=True)
class Departure:
    """`kind`: "skipped", "order_cycle" or "mismatch". `expected` is what sisters issued in the place of `op`."""

    rank: int
    kind: str
    op: Op
    expected: Op


@dataclass(frozen=True)
class Compared:
    """Two programs side by side from the oldest operation that both hold: positions where they part."""

    sister: int
    agreed: int
    mine: int
    theirs: int


class Programs:
    """The operations of each rank as keys that are equal for the same line of the program on every rank."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._numbers: dict[tuple[str, int, int], int] = {}
        self._distinct: dict[Any, int] = {}
        self._all_lines = not any("stacks" in lack for lack in job.lacks)
        self._cached: dict[int, tuple[Keys, dict[tuple[int, int], int]]] = {}
        self._found: dict[int, Departure | None] = {}

    def departure(self, rank: int) -> Departure | None:
        """How a rank left what most of its sisters do; None if it did not, or nothing tells."""
        if rank not in self._found:
            self._found[rank] = self._departure(rank) if rank in self.job.ranks else None
        return self._found[rank]

    def known(self, rank: int) -> bool:
        """Whether the rank has a past in common with another one, so that a departure would be seen."""
        return rank in self.job.ranks and bool(self._compare_all(rank))

    def first_missed(self, rank: int) -> Op | None:
        """What the sister that agrees the longest issued where the rank stopped."""
        if rank not in self.job.ranks:
            return None
        stopped = [c for c in self._compare_all(rank) if c.mine == len(self.keys(rank)[0])]
        further = [c for c in stopped if c.theirs < len(self.keys(c.sister)[0])]
        best = max(further, key=lambda c: c.agreed, default=None)
        return self.job.ranks[best.sister].ops[best.theirs] if best else None

    def keys(self, rank: int) -> tuple[Keys, dict[tuple[int, int], int]]:
        """The program of a rank, and where it holds which collective."""
        if rank not in self._cached:
            ops = self.job.ranks[rank].ops
            keys = [self._number((self.job.groups[op.group].desc, op.signature, op.stack)) for op in ops]
            self._cached[rank] = keys, {(op.group, op.seq): i for i, op in enumerate(ops) if not op.p2p}
        return self._cached[rank]

    def _number(self, found: tuple[str, int, int]) -> int:
        """Sizes that may differ between ranks make no difference, nor do lines that some ranks did not record."""
        if found not in self._numbers:
            desc, signature, stack = found
            line = user_frame(self.job.stacks[stack]) if self._all_lines else None
            key = (desc, *comparable(self.job.signatures[signature]), line)
            self._numbers[found] = self._distinct.setdefault(key, len(self._distinct))
        return self._numbers[found]

    def _departure(self, rank: int) -> Departure | None:
        compared = self._compare_all(rank)
        mine, _ = self.keys(rank)
        parted = [c for c in compared if c.mine < len(mine) and c.theirs < len(self.keys(c.sister)[0])]
        if not parted:
            return None
        first = min(parted, key=lambda c: (c.mine, -c.agreed))
        expected = self.keys(first.sister)[0][first.theirs]
        same = [c for c in parted if c.mine == first.mine and self.keys(c.sister)[0][c.theirs] == expected]
        usual = foreseen(mine[: first.mine], 1)
        if usual == [mine[first.mine]] or (usual != [expected] and len(same) * 2 <= max(2, len(compared))):
            return None
        theirs = self.keys(first.sister)[0]
        kind = how(mine[first.mine :], theirs[first.theirs :] + foreseen(theirs, FORESEEN))
        ops = self.job.ranks
        return Departure(rank, kind, ops[rank].ops[first.mine], ops[first.sister].ops[first.theirs])

    def _compare_all(self, rank: int) -> list[Compared]:
        """The sisters that run the same program: others part from it at once."""
        found = [c for sister in self._sisters_of(rank) if (c := self._compare(rank, sister))]
        longest = max((c.agreed for c in found), default=0)
        return [c for c in found if c.agreed * 2 > longest]

    def _sisters_of(self, rank: int) -> list[int]:
        found: dict[int, None] = {}
        for group in self.job.ranks[rank].positions:
            members = [m for m in self.job.groups[group].ranks if m != rank and m in self.job.ranks]
            members.sort(key=lambda m: abs(m - rank))
            found.update(dict.fromkeys(members[:SISTERS_A_GROUP]))
        return list(found)

    def _compare(self, rank: int, sister: int) -> Compared | None:
        mine, places = self.keys(rank)
        theirs, known = self.keys(sister)
        start = next(((i, known[place]) for place, i in places.items() if place in known), None)
        if start is None:
            return None
        i, k = start
        agreed = agreement(mine, i, theirs, k)
        return Compared(sister, agreed, i + agreed, k + agreed) if agreed else None


def agreement(mine: Keys, i: int, theirs: Keys, k: int) -> int:
    """How many operations from `i` and `k` on are the same."""
    length = min(len(mine) - i, len(theirs) - k)
    if mine[i : i + length] == theirs[k : k + length]:
        return length
    return next(n for n in range(length) if mine[i + n] != theirs[k + n])


def foreseen(keys: Keys, count: int) -> Keys:
    """What followed the last time that the program stood where it stands now; the longest memory decides."""
    best, length = 0, 0
    for end in range(len(keys) - 1, 0, -1):
        if keys[end - 1] != keys[-1]:
            continue
        same = next((n for n in range(min(MEMORY, end)) if keys[end - 1 - n] != keys[-1 - n]), min(MEMORY, end))
        if same > length:
            best, length = end, same
        if length == MEMORY:
            break
    return keys[best : best + count] if length else []


def how(mine: Keys, theirs: Keys) -> str:
    """What I did where my program and theirs part."""
    for count in range(1, LAUNCHED_AT_ONCE + 1):
        if mine[: count + 1] == [*theirs[count : count + 1], *theirs[:count]]:
            return "order_cycle"
    for count in range(1, LAUNCHED_AT_ONCE + 1):
        rest = theirs[count:]
        length = min(len(rest), len(mine), FORESEEN)
        if length and mine[:length] == rest[:length]:
            return "skipped"
    return "mismatch"
