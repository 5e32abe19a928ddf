"""Match the call sites of two ranks that run the same lines under other lines: another loop, schedule or wrapper.

Worked example, innermost line first: rank 0 allocates in `mlp:58 < layer:74 < run_warmup:12`, rank 1 in `mlp:58 <
layer:74 < steady:30`, and neither has the other's call site. Both share `mlp:58 < layer:74`, so that they count as one.
If rank 0 also had `mlp:58 < layer:74 < steady:30`, what it ran under `run_warmup` would be its own, as an evaluation
is, unless the name says that it belongs to a pipeline's schedule.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile

from analyzers.memory.difference_model import Purpose
from analyzers.memory.ranks.call_sites import CallSite

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
            may_share = any(_SCHEDULE.search(frame.rpartition(" ")[2]) for frame in outer)
            others = [other for other in by_line[site[0]] if may_share or other not in own]
            if others:
                aligned[site] = values[max(others, key=lambda other: shared(site, other))]
    return aligned


def _outer_frames(site: CallSite, others: Sequence[CallSite]) -> list[str]:
    """Return the frames of a call site, outermost first, that lie outside of what it shares with any of the others."""
    return list(site[max((shared(site, other) for other in others), default=0) :][::-1])


def shared(a: CallSite, b: CallSite) -> int:
    """Return how many of their innermost frames two call sites share."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def purpose_of(frames: Sequence[str], library: Sequence[str]) -> tuple[Purpose, str]:
    """Return what lines are for, by the names of the functions, with the frame that shows it (empty: no frame does).

    `frames` are `file:line function`, outermost first; `library` are names of functions inside the innermost one.
    """
    for purpose, pattern in _PURPOSES:
        for frame in frames:
            if pattern.search(frame.rpartition(" ")[2]):
                return purpose, frame
    names = [*(frame.rpartition(" ")[2] for frame in frames), *library]
    return (Purpose.OUTPUT if any(map(OUTPUT.search, names)) else Purpose.UNKNOWN), ""
