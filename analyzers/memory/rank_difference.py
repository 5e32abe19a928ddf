"""Match the call sites of two ranks that run the same lines under other lines: another loop, schedule or wrapper.

Worked example, innermost line first: rank 0 allocates in `mlp:58 < layer:74 < run_warmup:12`, rank 1 in `mlp:58 <
layer:74 < steady:30`, and neither has the other's call site. Both share `mlp:58 < layer:74`, so that they count as one.
If rank 0 also had `mlp:58 < layer:74 < steady:30`, what it ran under `run_warmup` would be its own, as an evaluation
is, unless the name says that it belongs to a pipeline's schedule.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from statistics import median

from analyzers.device_memory import FEWER_PROCESSES
from analyzers.frames import Place
from analyzers.memory.call_sites import STATE, CallSite, RankMemory, SiteUse, highest, joined
from analyzers.memory.evidence import about, innermost
from analyzers.memory.model import Device, DifferenceKind, Oom, Purpose, RankDifference
from analyzers.memory.snapshot import CATEGORIES
from analyzers.memory.stacks import call_site
from analyzers.words import rank_names, size

_PURPOSES = (
    (Purpose.EVALUATION, re.compile(r"(?i)(^|_)(eval|valid|infer|predict|generat|test_(step|loop|epoch))")),
    (Purpose.AVERAGE, re.compile(r"(?i)(^|_)(ema|swa|polyak|shadow)(_|$)|moving_average|averag(e|ing)_(model|weight)")),
    (Purpose.CHECKPOINT, re.compile(r"(?i)checkpoint|state_dict|full_tensor|(^|_)save(_|$)|consolidat")),
)
OUTPUT = re.compile(r"(?i)cross_entropy|log_softmax|nll_loss|logits|lm_head|(^|_)head(_|$)")
_SCHEDULE = re.compile(r"(?i)warm_?up|cool_?down|1f1b|gpipe|micro_?batch|schedule|pipeline")


def aligned_values(
    wanted: Collection[CallSite], own: Collection[CallSite], values: Mapping[CallSite, int]
) -> dict[CallSite, int]:
    """Return `values`, the values of another rank, with those of the call sites in `wanted` that match one of its own.

    `own` are all call sites of the rank that `wanted` belongs to.
    """
    by_line: defaultdict[str, list[CallSite]] = defaultdict(list)
    for site in values:
        by_line[site[0]].append(site)
    aligned = dict(values)
    for site in wanted:
        if site in values:
            continue
        outer = _outer_frames(site, by_line[site[0]])
        if purpose_of(outer, ())[0] in (Purpose.UNKNOWN, Purpose.OUTPUT):
            may_share = any(_SCHEDULE.search(Place.read(frame).function) for frame in outer)
            others = [other for other in by_line[site[0]] if may_share or other not in own]
            if others:
                aligned[site] = values[max(others, key=lambda other: shared(site, other))]
    return aligned


def _outer_frames(site: CallSite, others: Sequence[CallSite]) -> list[str]:
    return list(site[max((shared(site, other) for other in others), default=0) :][::-1])


def shared(a: CallSite, b: CallSite) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def purpose_of(frames: Sequence[str], library: Sequence[str]) -> tuple[Purpose, str]:
    """Return what lines are for, by the names of the functions, with the frame that shows it (empty: no frame does).

    `frames` are `file:line function`, outermost first; `library` are names of functions inside the innermost one.
    """
    for purpose, pattern in _PURPOSES:
        for frame in frames:
            if pattern.search(Place.read(frame).function):
                return purpose, frame
    names = [*(Place.read(frame).function for frame in frames), *library]
    return (Purpose.OUTPUT if any(map(OUTPUT.search, names)) else Purpose.UNKNOWN), ""


# Find out how a rank that ran out of memory differs from the other ranks of its job.
#
# Worked example: when the request of rank 2 failed, the blocks of `forward (model.py:30)` were 12 MiB each and those of
# `forward (model.py:41)` 24 MiB; on the other ranks the largest that these lines ever allocated were 4 and 8 MiB. All
# lines have three times as much, so the whole batch is larger (`BATCH`). If `model.py:41` had 8 MiB on all ranks, only
# a part of the tensors would be larger (`PART`), as where a router sends more tokens to one rank's experts.

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
        uses = self.failed.live(self.oom.index)
        stack = int(self.failed.replay.trace.entry("stack")[self.oom.index])
        if site := self.failed.site(stack):
            size = self.oom.requested_bytes
            request = SiteUse(size, 1, size, uses[site].category if site in uses else "temporary", stack)
            uses[site] = joined(uses[site], request) if site in uses else request
        return uses

    @cached_property
    def usual_largest(self) -> dict[CallSite, int]:
        return highest(self.aligned(peer.largest()) for peer in self.peers)

    @cached_property
    def usual_blocks(self) -> dict[CallSite, int]:
        return highest(self.aligned(peer.most_blocks()) for peer in self.peers)

    def aligned(self, values: Mapping[CallSite, int]) -> dict[CallSite, int]:
        """Return the values of another rank, also for call sites of the failed rank that it has under other lines."""
        return aligned_values(self.live, {*self.live, *self.ever}, values)

    @cached_property
    def ever(self) -> dict[CallSite, int]:
        return self.failed.largest()

    @cached_property
    def own_earlier(self) -> dict[CallSite, int]:
        return self.failed.largest(self.before)

    @cached_property
    def larger(self) -> dict[CallSite, float]:
        known = {site: use.largest for site, use in self.live.items() if self.is_known(site)}
        ratios = {site: largest / self.usual_largest[site] for site, largest in known.items()}
        return {site: ratio for site, ratio in ratios.items() if ratio >= _LARGER_RATIO}

    def is_known(self, site: CallSite) -> bool:
        return self.usual_largest.get(site, 0) > 0

    @cached_property
    def own(self) -> dict[CallSite, SiteUse]:
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
    if use.category in _STATE_NAMES or not c.is_known(site):
        return False
    return 1 / _EQUAL_RATIO <= use.largest / c.usual_largest[site] <= _EQUAL_RATIO


def _own_lines(c: Comparison) -> RankDifference:
    worst = max(c.own, key=lambda site: c.own[site].bytes)
    below = _frames_below_split(worst, c.usual_largest)
    purpose, line = purpose_of(below, c.failed.replay.trace.snapshot.frames.native_names(c.own[worst].stack))
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
    named = [frame for frame in reversed(below) if not frame.endswith(">")]
    known = {frame for other in others for frame in other}
    return next((frame for frame in named if frame not in known), named[0] if named else "")


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


PURPOSE_ADVICE = {
    Purpose.EVALUATION: "Evaluate under torch.no_grad(), with a batch that fits, and on all ranks, each with a part of"
    " the data.",
    Purpose.CHECKPOINT: "Save shards with torch.distributed.checkpoint, or gather with cpu_offload=True, so that no"
    " rank holds the whole state on its device.",
    Purpose.AVERAGE: "Keep the average on the CPU, or shard it over all ranks like the parameters.",
    Purpose.OUTPUT: "If this rank is the last pipeline stage, its output layer and the loss come on top of its layers:"
    " give it fewer layers, or compute the loss in pieces.",
    Purpose.UNKNOWN: "Do this on the CPU, or spread it over all ranks.",
}
NEXT = {
    DifferenceKind.BATCH: "Give all ranks about as many tokens or pixels a step: shards of equal size, and samples that"
    " are truncated, resized or packed.",
    DifferenceKind.PART: "If these lines belong to experts, the router sends too many tokens to those of this rank:"
    " limit them with a capacity factor, or balance the load with an auxiliary loss. Otherwise check on which data"
    " their sizes depend.",
    DifferenceKind.MORE: "If this rank is an early pipeline stage, let fewer microbatches be in flight, or give it"
    " fewer layers. Otherwise find what keeps these tensors alive.",
    DifferenceKind.LAYERS: "Split the layers more evenly over the pipeline stages, or shard what only this rank keeps"
    " whole.",
    DifferenceKind.NO_RECOMPUTATION: "Turn on activation checkpointing on this rank, too: compare its configuration and"
    " its environment with those of another rank.",
    DifferenceKind.OUTSIDE: f"{FEWER_PROCESSES}.",
}


def difference_advice(rank: int, oom: Oom, difference: RankDifference) -> str:
    if difference.kind is DifferenceKind.BATCH and _may_be_everywhere(oom, difference):
        return _batch_before(rank, difference)
    sentence = _own_sentence(rank, oom, difference) if difference.kind is DifferenceKind.OWN else ""
    advice = NEXT.get(difference.kind) or PURPOSE_ADVICE[difference.purpose]
    return f"{sentence or _difference_sentence(rank, difference)} {advice}"


def _may_be_everywhere(oom: Oom, difference: RankDifference) -> bool:
    """Return whether the other ranks may do the same in the failing step: they are recorded up to an earlier step.

    If the failing rank did it in its own earlier steps already, the recordings of the others would show it.
    """
    if oom.step is None or difference.until_step is None or difference.is_new is False:
        return False
    return difference.until_step < oom.step


def _batch_before(rank: int, difference: RankDifference) -> str:
    return (
        f"First check why the batch of rank {rank} in the failing step is so large (collation, packing, long samples"
        f" that are not truncated): its tensors are about {about(difference.ratio or 1)} times as large as any that it"
        f" or {_compared_ranks(difference)} had before in the same lines. Cap the tokens or pixels of a batch."
    )


def _own_sentence(rank: int, oom: Oom, difference: RankDifference) -> str:
    d = difference
    most = "" if d.line == d.frames[0] else f", most of it in {innermost(d.frames)}"
    first = f"First look at {call_site(d.line)}: it needs {size(d.bytes)} on rank {rank}{most}"
    if not _may_be_everywhere(oom, d):
        return f"{first}, and no other rank ran it."
    return (
        f"{first}. It is in no earlier step, and the recordings of {_compared_ranks(d)} end with step {d.until_step}."
    )


def _difference_sentence(rank: int, difference: RankDifference) -> str:
    d, others = difference, _compared_ranks(difference)
    ratio = about(d.ratio or 1)
    match d.kind:
        case DifferenceKind.PART:
            return (
                f"First check why rank {rank} gets more in {innermost(d.frames)}{when(d)}: these tensors are about"
                f" {ratio} times as large as the largest of {others}, while those of other lines are as large as there."
            )
        case DifferenceKind.MORE | DifferenceKind.NO_RECOMPUTATION:
            return _more_sentence(rank, d)
        case DifferenceKind.LAYERS:
            return (
                f"First compare the part of the model on rank {rank}: parameters, gradients and optimizer state take"
                f" {size(d.own_bytes)}, on {others} at most {size(d.usual_bytes)}."
            )
        case DifferenceKind.OUTSIDE:
            return (
                f"First find out what else uses the device of rank {rank}: PyTorch could get only"
                f" {size(d.own_bytes)} of it, while it reserved {size(d.usual_bytes)} on {others}."
            )
        case _:
            return (
                f"First check the batch of rank {rank}{when(d)}: its tensors are about {ratio} times as large as the"
                f" largest of {others} in the same lines."
            )


def difference_clause(difference: RankDifference) -> str:
    """Return the difference as a clause for the verdict, whose subject is the rank that ran out of memory."""
    d, others, ratio = difference, _compared_ranks(difference), about(difference.ratio or 1)
    match d.kind:
        case DifferenceKind.BATCH:
            return f"its tensors are about {ratio} times as large as any of {others}"
        case DifferenceKind.PART:
            return f"its tensors of {innermost(d.frames)} are about {ratio} times as large as any of {others}"
        case DifferenceKind.OWN:
            return f"{size(d.bytes)} come from {call_site(d.line)}, which no recording of {others} has"
        case DifferenceKind.OUTSIDE:
            return f"PyTorch could get {size(d.bytes)} less of its device than of those of {others}"
        case _:
            return f"it has {size(d.bytes)} more than {others}, in tensors of the same sizes"


def _more_sentence(rank: int, difference: RankDifference) -> str:
    many = f"{about(difference.ratio)} times as many" if difference.ratio else "more"
    why = " keeps activations that they compute again in the backward pass, and so"
    return (
        f"First check why rank {rank} holds more than {_compared_ranks(difference)}: it"
        f"{why * (difference.kind is DifferenceKind.NO_RECOMPUTATION)} has {many} tensors of the same size alive, such"
        f" as those of {innermost(difference.frames, 'the backward pass')}, which makes {size(difference.bytes)}."
    )


def difference_fact(difference: RankDifference) -> str:
    return f"{size(difference.bytes)} more than on {_compared_ranks(difference)}"


def _compared_ranks(difference: RankDifference) -> str:
    names = rank_names(difference.ranks)
    return f"the {len(difference.ranks)} other ranks ({names})" if len(difference.ranks) > 1 else names


def when(difference: RankDifference) -> str:
    return {True: " in the failing step", False: " in every step", None: ""}[difference.is_new]
