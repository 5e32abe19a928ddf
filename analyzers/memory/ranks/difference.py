"""Find out how a rank that ran out of memory differs from the other ranks of its job.

Worked example: when the request of rank 2 failed, the blocks of `forward (model.py:30)` were 12 MiB each and those of
`forward (model.py:41)` 24 MiB; on the other ranks the largest that these lines ever allocated were 4 and 8 MiB. All
lines have three times as much, so the whole batch is larger (`BATCH`). If `model.py:41` had 8 MiB on all ranks, only a
part of the tensors would be larger (`PART`), as where a router sends more tokens to one rank's experts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from analyzers.memory.difference_model import DifferenceKind, RankDifference
from analyzers.memory.model import Device, Oom
from analyzers.memory.ranks.alignment import aligned_values, purpose_of
from analyzers.memory.ranks.call_sites import STATE, CallSite, RankMemory, SiteUse, highest, joined
from analyzers.memory.reading.schema import CATEGORIES

_LARGER_RATIO, _EQUAL_RATIO = 1.3, 1.1
"""A tensor is larger than on the other ranks from the first ratio on, and equally large up to the second one."""
_PART_SHARE = 0.2
"""If lines with this share of the bytes have tensors of equal size, not the whole batch is larger."""
_STATE_SHARE, _OUTSIDE_RATIO = 0.2, 1.15
_DECISIVE_SHARE, _DECISIVE_BYTES = 0.05, 1 << 20
"""A difference counts if it is at least this share of the memory that was needed, and so many bytes."""
_STATE_NAMES = frozenset(CATEGORIES[category] for category in STATE)


@dataclass(frozen=True)
class Comparison:
    """A rank that ran out of memory (`failed`) beside others (`peers`); `before` is the first entry of its last step.

    `before` is None if the steps are not known.
    """

    failed: RankMemory
    oom: Oom
    peers: Sequence[RankMemory]
    before: int | None

    @cached_property
    def live(self) -> dict[CallSite, SiteUse]:
        """The use of each call site when the request failed, with the request as one more block."""
        uses = self.failed.live(self.oom.index)
        stack = int(self.failed.replay.trace.entry("stack")[self.oom.index])
        if site := self.failed.site(stack):
            size = self.oom.requested_bytes
            request = SiteUse(size, 1, size, uses[site].category if site in uses else "temporary", stack)
            uses[site] = joined(uses[site], request) if site in uses else request
        return uses

    @cached_property
    def usual_largest(self) -> dict[CallSite, int]:
        """The largest block of each call site on any other rank, at any time."""
        return highest(self.aligned(peer.largest()) for peer in self.peers)

    @cached_property
    def usual_blocks(self) -> dict[CallSite, int]:
        """The most blocks of each call site that any other rank had at the same time."""
        return highest(self.aligned(peer.most_blocks()) for peer in self.peers)

    def aligned(self, values: Mapping[CallSite, int]) -> dict[CallSite, int]:
        """Return the values of another rank, also for call sites of the failed rank that it has under other lines.

        See `alignment`.
        """
        return aligned_values(self.live, {*self.live, *self.ever}, values)

    @cached_property
    def ever(self) -> dict[CallSite, int]:
        """The largest block of each call site of the failed rank at any time."""
        return self.failed.largest()

    @cached_property
    def own_earlier(self) -> dict[CallSite, int]:
        """The largest block of each call site in the earlier steps of the rank itself."""
        return self.failed.largest(self.before)

    @cached_property
    def larger(self) -> dict[CallSite, float]:
        """For each call site whose largest block is larger than on any other rank: how many times as large."""
        known = {site: use.largest for site, use in self.live.items() if self.is_known(site)}
        ratios = {site: largest / self.usual_largest[site] for site, largest in known.items()}
        return {site: ratio for site, ratio in ratios.items() if ratio >= _LARGER_RATIO}

    def is_known(self, site: CallSite) -> bool:
        """Return whether another rank allocated memory at a call site."""
        return self.usual_largest.get(site, 0) > 0

    @cached_property
    def own(self) -> dict[CallSite, SiteUse]:
        """The use of the call sites at which no other rank allocated memory."""
        return {site: use for site, use in self.live.items() if site not in self.usual_largest}

    @cached_property
    def more(self) -> dict[CallSite, int]:
        """For each call site with blocks of the usual size: the bytes of the blocks that no other rank has beside."""
        extra = {}
        for site, use in self.live.items():
            if self.is_known(site) and site not in self.larger:
                more = max(0, use.blocks - self.usual_blocks.get(site, 0))
                extra[site] = round(use.bytes * more / use.blocks)
        return extra

    @cached_property
    def state(self) -> tuple[int, int]:
        """The bytes of parameters, gradients and optimizer state: on this rank, and the most on another rank.

        What only this rank allocates is left out.
        """
        own = sum(use.bytes for use in self.own.values() if use.category in _STATE_NAMES)
        here = self.failed.state_bytes(self.oom.index) - own
        return here, max((peer.state_bytes(peer.peak_entry) for peer in self.peers), default=0)


def difference_of(comparison: Comparison) -> RankDifference | None:
    """Return how the failed rank differs from the others; None if no difference is large enough to explain it."""
    c = comparison
    larger = {site: round(c.live[site].bytes * (1 - 1 / ratio)) for site, ratio in c.larger.items()}
    state, usual_state = c.state
    sums = {
        DifferenceKind.BATCH: sum(larger.values()),
        DifferenceKind.OWN: sum(use.bytes for use in c.own.values()),
        DifferenceKind.MORE: sum(c.more.values()),
        DifferenceKind.LAYERS: state - usual_state,
    }
    kind = max(sums, key=lambda one: sums[one])
    needed = c.oom.allocated_bytes + c.oom.requested_bytes
    if sums[kind] < max(_DECISIVE_BYTES, _DECISIVE_SHARE * needed):
        return None
    if kind is DifferenceKind.BATCH:
        return _larger_tensors(c, larger)
    if kind is DifferenceKind.OWN:
        return _own_lines(c)
    return _more_tensors(c, sums[kind])


def _larger_tensors(c: Comparison, excess: Mapping[CallSite, int]) -> RankDifference:
    """Return the difference that tensors are larger than on the other ranks: of all lines, or of a part of them.

    `excess` has, for each call site with larger tensors, its bytes above the usual.
    """
    usual = {site: c.live[site].bytes / ratio for site, ratio in c.larger.items()}
    equal = sum(use.bytes for site, use in c.live.items() if _is_equal(c, site, use))
    is_part = equal > _PART_SHARE * (equal + sum(usual.values()))
    worst = max(excess, key=lambda site: excess[site])
    return RankDifference(
        kind=DifferenceKind.PART if is_part else DifferenceKind.BATCH,
        ranks=[],
        bytes=sum(excess.values()),
        ratio=c.larger[worst] if is_part else sum(c.live[site].bytes for site in usual) / sum(usual.values()),
        frames=list(worst),
        line=worst[0],
        is_new=None if c.before is None else c.own_earlier.get(worst, 0) * _LARGER_RATIO < c.live[worst].largest,
    )


def _is_equal(c: Comparison, site: CallSite, use: SiteUse) -> bool:
    """Return whether a call site has activations or temporary tensors as large as on the other ranks."""
    if use.category in _STATE_NAMES or not c.is_known(site):
        return False
    return 1 / _EQUAL_RATIO <= use.largest / c.usual_largest[site] <= _EQUAL_RATIO


def _own_lines(c: Comparison) -> RankDifference:
    """Return the difference that the rank has memory from lines that no other rank has run."""
    worst = max(c.own, key=lambda site: c.own[site].bytes)
    below = _frames_below_split(worst, c.usual_largest)
    purpose, line = purpose_of(below, _library_names(c.failed, c.own[worst].stack))
    return RankDifference(
        kind=DifferenceKind.OWN,
        ranks=[],
        bytes=sum(use.bytes for use in c.own.values()),
        frames=list(worst),
        line=line or _telling_frame(below, c.usual_largest) or worst[0],
        purpose=purpose,
        is_new=None if c.before is None else not set(c.own) & set(c.own_earlier),
    )


def _frames_below_split(site: CallSite, others: Mapping[CallSite, int]) -> list[str]:
    """Return the frames of a call site, outermost first, from the first one on that no other call site shares.

    Two call sites share a frame if all frames outside of it are the same, too.
    """
    outward = site[::-1]
    known = {other[::-1][:depth] for other in others for depth in range(1, len(other) + 1)}
    split = next((depth for depth in range(1, len(outward) + 1) if outward[:depth] not in known), len(outward))
    return list(outward[split - 1 :])


def _telling_frame(below: Sequence[str], others: Mapping[CallSite, int]) -> str:
    """Return the innermost frame that is in no call site of the others, or else the innermost one; empty without any.

    `below` are frames, outermost first. What a line calls, such as the layers of the model, the others may call, too.
    """
    named = [frame for frame in reversed(below) if not frame.endswith(">")]
    known = {frame for other in others for frame in other}
    return next((frame for frame in named if frame not in known), named[0] if named else "")


def _library_names(memory: RankMemory, stack: int) -> list[str]:
    """Return the names of the functions of a stack that are inside the user's innermost frame."""
    return memory.replay.trace.snapshot.frames.native_names(stack)


def _more_tensors(c: Comparison, excess: int) -> RankDifference:
    """Return the difference that the rank keeps more tensors of the usual sizes, or more state of the model."""
    here, usual = c.state
    worst = max(c.more, key=lambda site: c.more[site], default=())
    kind = DifferenceKind.MORE
    if here - usual > _STATE_SHARE * usual:
        kind = DifferenceKind.LAYERS
    elif not c.failed.recomputes and all(peer.recomputes for peer in c.peers):
        kind = DifferenceKind.NO_RECOMPUTATION
    most = c.usual_blocks.get(worst, 0)
    return RankDifference(
        kind=kind,
        ranks=[],
        bytes=excess,
        ratio=c.live[worst].blocks / most if worst and most else None,
        frames=list(worst),
        line=worst[0] if worst else "",
        own_bytes=here,
        usual_bytes=usual,
    )


def outside_difference(failed: Device, oom: Oom, peers: Sequence[Device]) -> RankDifference | None:
    """Return the difference that PyTorch could get less of the rank's device than other ranks reserved; None without.

    What a rank can get is what it has reserved and what is free. A CPU has no segments that are reserved.
    """
    reserved = [peer.peak_reserved_bytes for peer in peers if not peer.fragmentation.made_up_segments]
    available = oom.reserved_bytes + oom.device_free_bytes
    if not reserved or failed.fragmentation.made_up_segments or median(reserved) < _OUTSIDE_RATIO * available:
        return None
    usual = int(median(reserved))
    return RankDifference(
        kind=DifferenceKind.OUTSIDE, ranks=[], bytes=usual - available, own_bytes=available, usual_bytes=usual
    )
