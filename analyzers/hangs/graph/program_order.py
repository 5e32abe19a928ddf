"""Where a rank's program deviates from that of its sisters: an operation skipped, swapped, or another one issued.

Each operation of a rank becomes a key that is equal for the same line of the program on every rank. From the oldest
operation that both dumps hold, two ranks are compared until their keys differ. With A, B, C, D for operations:

    sister   A B C D A B C D A B C D
    rank 1   A B C D A B D A            deviates at the seventh: D in place of C

After the point of deviation rank 1 has `D A`, its sister `C D A B`. Without the sister's first operation both read
`D A`, so rank 1 skipped C. Had it gone on with `D C`, it would have swapped two (`order_cycle`); with anything else it
issued another operation (`mismatch`).
"""

from dataclasses import dataclass

from analyzers.hangs.graph.signatures import comparable
from analyzers.hangs.model import HangClass, Job, Lack, Op, user_frame

SISTERS_PER_GROUP = 6
"""Enough for a majority; comparing with thousands would take minutes."""
PREDICTED = 6
"""Operations predicted from earlier steps when a sister stopped short of issuing them."""
CONTEXT = 12
"""How many operations before one decide which comes next."""
LARGEST_LAUNCH = 4
"""Entries that one launch may consist of: a batch of sends and receives."""

Keys = list[int]


@dataclass(frozen=True)
class Deviation:
    """A rank's first operation, `issued`, that differs from what ranks with the same program issued, `expected`.

    `kind` is skipped, order_cycle or mismatch.
    """

    rank: int
    kind: HangClass
    issued: Op
    expected: Op


@dataclass(frozen=True)
class Comparison:
    """A rank's operations compared with those of `sister`, from the oldest one that both dumps hold.

    `agreed` is how many are equal; `mine` and `theirs` are the indexes of the first ones that are not, or of the ends.
    """

    sister: int
    agreed: int
    mine: int
    theirs: int


class Programs:
    """The sequence of operations of each rank, compared with those of other ranks on demand."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._numbers: dict[tuple[str, int, int], int] = {}
        self._distinct: dict[tuple[object, ...], int] = {}
        # Where one dump has no stacks, lines would make equal operations differ.
        self._use_lines = Lack.STACKS not in job.lacks
        self._cached: dict[int, tuple[Keys, dict[tuple[int, int], int]]] = {}
        self._deviations: dict[int, Deviation | None] = {}

    def deviation(self, rank: int) -> Deviation | None:
        """Return where a rank deviates from most ranks with the same program; None if nothing shows it."""
        if rank not in self._deviations:
            self._deviations[rank] = self._find_deviation(rank) if rank in self.job.ranks else None
        return self._deviations[rank]

    def is_comparable(self, rank: int) -> bool:
        """Return whether a rank's dump shares operations with that of another rank, so that a deviation would show."""
        return rank in self.job.ranks and bool(self._comparisons(rank))

    def next_expected(self, rank: int) -> Op | None:
        """Return what a rank should issue next, as the rank that agrees longest with it did; None if none is ahead."""
        if rank not in self.job.ranks:
            return None
        stopped = [c for c in self._comparisons(rank) if c.mine == len(self.keys(rank)[0])]
        ahead = [c for c in stopped if c.theirs < len(self.keys(c.sister)[0])]
        best = max(ahead, key=lambda c: c.agreed, default=None)
        return self.job.ranks[best.sister].ops[best.theirs] if best else None

    def keys(self, rank: int) -> tuple[Keys, dict[tuple[int, int], int]]:
        """Return the keys of a rank's operations in order, and the index of each collective (group, seq) among them."""
        if rank not in self._cached:
            ops = self.job.ranks[rank].ops
            keys = [self._number((self.job.groups[op.group].desc, op.signature, op.stack)) for op in ops]
            self._cached[rank] = keys, {(op.group, op.seq): i for i, op in enumerate(ops) if not op.p2p}
        return self._cached[rank]

    def _number(self, operation: tuple[str, int, int]) -> int:
        """Return the key of an operation, which is the same on all ranks for the same line of the program.

        `operation` is (group description, signature, stack); the last two are indexes in the job's lists.
        """
        if operation not in self._numbers:
            desc, signature, stack = operation
            line = user_frame(self.job.stacks[stack]) if self._use_lines else None
            key = (desc, *comparable(self.job.signatures[signature]), line)
            self._numbers[operation] = self._distinct.setdefault(key, len(self._distinct))
        return self._numbers[operation]

    def _find_deviation(self, rank: int) -> Deviation | None:
        mine, compared = self.keys(rank)[0], self._comparisons(rank)
        differing = [c for c in compared if c.mine < len(mine) and c.theirs < len(self.keys(c.sister)[0])]
        if not differing:
            return None
        first = min(differing, key=lambda c: (c.mine, -c.agreed))
        theirs = self.keys(first.sister)[0]
        expected = theirs[first.theirs]
        same = [c for c in differing if c.mine == first.mine and self.keys(c.sister)[0][c.theirs] == expected]
        # The rank is right if it did what it did in earlier steps; the sisters are right if most of them agree.
        usual = predict(mine[: first.mine], 1)
        if usual == [mine[first.mine]] or (usual != [expected] and len(same) * 2 <= max(2, len(compared))):
            return None
        kind = classify_deviation(mine[first.mine :], theirs[first.theirs :] + predict(theirs, PREDICTED))
        issued, planned = self.job.ranks[rank].ops[first.mine], self.job.ranks[first.sister].ops[first.theirs]
        if kind is HangClass.ORDER_CYCLE and issued.group == planned.group:
            # Within one group the two meet under one number, as operations that differ.
            kind = HangClass.MISMATCH
        return Deviation(rank, kind, issued, planned)

    def _comparisons(self, rank: int) -> list[Comparison]:
        """Return the comparisons with ranks that run the same program: with others nearly nothing agrees."""
        every = [c for sister in self._sisters_of(rank) if (c := self._compare(rank, sister))]
        longest = max((c.agreed for c in every), default=0)
        return [c for c in every if c.agreed * 2 > longest]

    def _sisters_of(self, rank: int) -> list[int]:
        """Return the members of each of a rank's groups that are nearest to it by rank number, to compare with."""
        sisters: dict[int, None] = {}
        for group in self.job.ranks[rank].positions:
            members = [m for m in self.job.groups[group].ranks if m != rank and m in self.job.ranks]
            # Neighbours in a mesh most often belong to the same stage of the pipeline.
            members.sort(key=lambda m: abs(m - rank))
            sisters.update(dict.fromkeys(members[:SISTERS_PER_GROUP]))
        return list(sisters)

    def _compare(self, rank: int, sister: int) -> Comparison | None:
        """Return the comparison with a different rank; None where they share no collective, or nothing agrees."""
        mine, my_positions = self.keys(rank)
        theirs, their_positions = self.keys(sister)
        shared = ((i, their_positions[op]) for op, i in my_positions.items() if op in their_positions)
        start = next(shared, None)
        if start is None:
            return None
        i, k = start
        agreed = count_equal(mine, i, theirs, k)
        return Comparison(sister, agreed, i + agreed, k + agreed) if agreed else None


def count_equal(mine: Keys, i: int, theirs: Keys, k: int) -> int:
    """Return how many keys in a row are equal, from index `i` of `mine` and `k` of `theirs` on."""
    length = min(len(mine) - i, len(theirs) - k)
    if mine[i : i + length] == theirs[k : k + length]:
        return length
    return next(n for n in range(length) if mine[i + n] != theirs[k + n])


def predict(keys: Keys, count: int) -> Keys:
    """Return the `count` keys that are likely to come next: those that followed the last keys in an earlier step.

    The longest equal context decides; without one the list is empty. After `A B C A B C A B` the next two are `C A`.
    """
    best, length = 0, 0
    for end in range(len(keys) - 1, 0, -1):
        if keys[end - 1] != keys[-1]:
            continue
        same = next((n for n in range(min(CONTEXT, end)) if keys[end - 1 - n] != keys[-1 - n]), min(CONTEXT, end))
        if same > length:
            best, length = end, same
        if length == CONTEXT:
            break
    return keys[best : best + count] if length else []


def classify_deviation(mine: Keys, theirs: Keys) -> HangClass:
    """Return how two programs differ, from their keys at and after the first difference."""
    for count in range(1, LARGEST_LAUNCH + 1):
        # A batch of several entries may have been swapped as a whole.
        if mine[: count + 1] == [*theirs[count : count + 1], *theirs[:count]]:
            return HangClass.ORDER_CYCLE
    for count in range(1, LARGEST_LAUNCH + 1):
        rest = theirs[count:]
        length = min(len(rest), len(mine), PREDICTED)
        if length and mine[:length] == rest[:length]:
            return HangClass.SKIPPED
    return HangClass.MISMATCH
