"""Find where a rank's program deviates from that of other ranks: an operation was skipped, swapped or replaced.

Ranks that run the same program, here called reference ranks, issue the same operations. Each operation of a rank
becomes a *key*, a number that is equal on every rank for the same line of the program. The keys of two ranks are
compared from the oldest operation that both dumps have, until they differ. With A, B, C, D for operations:

    reference   A B C D A B C D A B C D
    rank 1      A B C D A B D A            deviates at the seventh: D in place of C

From the seventh operation on, rank 1 has `D A` and the reference has `C D A B`. If the reference's C is removed, it has
`D A`, too: so rank 1 skipped C. If rank 1 had `D C`, it would have swapped two operations (`order_cycle`). With
anything else it would have issued a different operation (`mismatch`).
"""

from dataclasses import dataclass

from analyzers.hangs.graph.divergence import comparable
from analyzers.hangs.model import HangClass, Job, Lack, Op, user_frame

_REFERENCES_PER_GROUP = 6
"""The number of members of each process group with which a rank is compared: enough for a majority, and fast."""
_PREDICTED = 6
"""The number of operations of a stopped reference rank that are predicted from its earlier steps."""
CONTEXT = 12
"""The largest number of operations that are compared to find the same point in an earlier step."""
_LARGEST_LAUNCH = 4
"""The most sends and receives of one launch that are recognized as skipped or swapped together."""

Keys = list[int]


@dataclass(frozen=True)
class Deviation:
    """The first operation of a rank that differs from that of other ranks with the same program.

    `issued` is the rank's operation, `expected` the operation of the others; `kind` is `SKIPPED`, `ORDER_CYCLE`
    (swapped) or `MISMATCH`.
    """

    rank: int
    kind: HangClass
    issued: Op
    expected: Op


@dataclass(frozen=True)
class Comparison:
    """A rank's operations compared with those of rank `reference`, from the oldest operation that both dumps have.

    The first `agreed` operations are equal. `mine` and `theirs` are the indexes of the next operation after these, in
    the operations of each of the two ranks.
    """

    reference: int
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
        """Return the first `Deviation` of a rank from most ranks with the same program; None if there is none."""
        if rank not in self._deviations:
            self._deviations[rank] = self._find_deviation(rank) if rank in self.job.ranks else None
        return self._deviations[rank]

    def is_comparable(self, rank: int) -> bool:
        """Return whether a rank's dump shares operations with another dump, so that a deviation would be visible."""
        return rank in self.job.ranks and bool(self._comparisons(rank))

    def next_expected(self, rank: int) -> Op | None:
        """Return the operation that a rank should issue next, as recorded by another rank; None if no rank is ahead.

        If several ranks are ahead, the one whose operations agree with those of `rank` over the longest part is used.
        """
        if rank not in self.job.ranks:
            return None
        stopped = [c for c in self._comparisons(rank) if c.mine == len(self.keys(rank)[0])]
        ahead = [c for c in stopped if c.theirs < len(self.keys(c.reference)[0])]
        best = max(ahead, key=lambda c: c.agreed, default=None)
        return self.job.ranks[best.reference].ops[best.theirs] if best else None

    def keys(self, rank: int) -> tuple[Keys, dict[tuple[int, int], int]]:
        """Return (keys of a rank's operations in order, index of each collective in this list by (group, seq)).

        A key is a number that is equal on every rank for the same line of the program.
        """
        if rank not in self._cached:
            ops = self.job.ranks[rank].ops
            keys = [self._number((self.job.groups[op.group].desc, op.signature, op.stack)) for op in ops]
            self._cached[rank] = keys, {(op.group, op.seq): i for i, op in enumerate(ops) if not op.p2p}
        return self._cached[rank]

    def _number(self, operation: tuple[str, int, int]) -> int:
        """Return the key of an operation: a number that is the same on all ranks for the same line of the program.

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
        differing = [c for c in compared if c.mine < len(mine) and c.theirs < len(self.keys(c.reference)[0])]
        if not differing:
            return None
        first = min(differing, key=lambda c: (c.mine, -c.agreed))
        theirs = self.keys(first.reference)[0]
        expected = theirs[first.theirs]
        same = [c for c in differing if c.mine == first.mine and self.keys(c.reference)[0][c.theirs] == expected]
        # The rank is right if it did what it did in earlier steps; the references are right if most of them agree.
        usual = predict(mine[: first.mine], 1)
        if usual == [mine[first.mine]] or (usual != [expected] and len(same) * 2 <= max(2, len(compared))):
            return None
        kind = _classify_deviation(mine[first.mine :], theirs[first.theirs :] + predict(theirs, _PREDICTED))
        issued, planned = self.job.ranks[rank].ops[first.mine], self.job.ranks[first.reference].ops[first.theirs]
        if kind is HangClass.ORDER_CYCLE and issued.group == planned.group:
            # Within one group the two meet under one number, as operations that differ.
            kind = HangClass.MISMATCH
        is_in_loop = len(set(mine[max(0, first.mine - 2) :])) == 1 and len(mine) == first.mine + 1 > 2
        if kind is HangClass.SKIPPED and is_in_loop:
            # A rank in a loop of equal operations may as well have gone round once more.
            kind = HangClass.MISMATCH
        return Deviation(rank, kind, issued, planned)

    def _comparisons(self, rank: int) -> list[Comparison]:
        """Return the comparisons of a rank's operations with those of other ranks that seem to run the same program.

        The number of equal operations before the first difference decides: another rank seems to run the same program
        if this number is more than half of the largest such number among all compared ranks.
        """
        every = [c for reference in self._reference_ranks(rank) if (c := self._compare(rank, reference))]
        longest = max((c.agreed for c in every), default=0)
        return [c for c in every if c.agreed * 2 > longest]

    def _reference_ranks(self, rank: int) -> list[int]:
        """Return the ranks to compare a rank with: in each of its groups, the members with the nearest rank numbers."""
        references: dict[int, None] = {}
        for group in self.job.ranks[rank].positions:
            members = [m for m in self.job.groups[group].ranks if m != rank and m in self.job.ranks]
            # Neighbours in a mesh most often belong to the same stage of the pipeline.
            members.sort(key=lambda m: abs(m - rank))
            references.update(dict.fromkeys(members[:_REFERENCES_PER_GROUP]))
        return list(references)

    def _compare(self, rank: int, reference: int) -> Comparison | None:
        """Return the comparison of a rank's operations with those of rank `reference`.

        The result is None if the two dumps have no collective in common, or if already the first operations after the
        common one differ.
        """
        mine, my_positions = self.keys(rank)
        theirs, their_positions = self.keys(reference)
        shared = ((i, their_positions[op]) for op, i in my_positions.items() if op in their_positions)
        start = next(shared, None)
        if start is None:
            return None
        i, k = start
        agreed = _count_equal(mine, i, theirs, k)
        return Comparison(reference, agreed, i + agreed, k + agreed) if agreed else None


def _count_equal(mine: Keys, i: int, theirs: Keys, k: int) -> int:
    """Return how many keys are equal one after the other, starting at index `i` of `mine` and index `k` of `theirs`.

    A key is a number that stands for an operation of the program.
    """
    length = min(len(mine) - i, len(theirs) - k)
    # Most ranks agree to the end, and comparing slices is far faster than comparing the keys in a loop.
    if mine[i : i + length] == theirs[k : k + length]:
        return length
    return next(n for n in range(length) if mine[i + n] != theirs[k + n])


def predict(keys: Keys, count: int) -> Keys:
    """Return the keys of the next `count` operations; they are assumed to be the same as in an earlier step.

    The longest earlier occurrence of the last keys decides; without one the list is empty. After `A B C A B C A B` the
    next two are `C A`. A key is a number that stands for an operation.
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


def _classify_deviation(mine: Keys, theirs: Keys) -> HangClass:
    """Return how a rank's program differs: it skipped an operation, swapped two, or issued a different one.

    `mine` and `theirs` are the keys (numbers of operations) of the rank and of the other rank from the first difference
    on. Two swapped operations are an `ORDER_CYCLE`.
    """
    for count in range(1, _LARGEST_LAUNCH + 1):
        # A batch of several entries may have been swapped as a whole.
        if mine[: count + 1] == [*theirs[count : count + 1], *theirs[:count]]:
            return HangClass.ORDER_CYCLE
    for count in range(1, _LARGEST_LAUNCH + 1):
        rest = theirs[count:]
        length = min(len(rest), len(mine), _PREDICTED)
        if length and mine[:length] == rest[:length]:
            return HangClass.SKIPPED
    return HangClass.MISMATCH
