"""Find losses over a large vocabulary that are computed in several steps, each of which passes over all logits.

Example: 8192 tokens and a vocabulary of 128 256 have 1.05 billion logits. A cast to float32 (6.3 GB read and written),
log-softmax (8.4 GB), its backward pass (12.6 GB) and the cast back (6.3 GB) take 10 ms on an H100. A fused loss reads
the logits in 16 bits once, and in the backward pass reads and writes them once: 6.3 GB, 1.9 ms.
"""

import math
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import numpy as np

from analyzers.columns import Integers, Mask
from analyzers.traces.answers.costs import Attribution
from analyzers.traces.answers.flops import Formulas, decoded_list
from analyzers.traces.columns.intervals import COMPUTE
from analyzers.traces.columns.nesting import NONE, innermost_selected
from analyzers.traces.opportunities.kernel_kinds import multiplies
from analyzers.traces.opportunities.pointwise import named
from analyzers.traces.reading.distinct import distinct_values, factorize

FORWARD = "aten::_log_softmax"
_VOCABULARY_AT_LEAST = 16_384
_LEAST_PASSES, _LEAST_BYTES = 3, 2
"""A fused loss reads 16-bit logits in the forward pass, and reads and writes them in the backward pass."""


class Logits(NamedTuple):
    """The size of logits: the number of tokens, and that of the vocabulary."""

    tokens: int
    vocabulary: int


def cross_entropy_shortening(attribution: Attribution, formulas: Formulas) -> Integers:
    """Return by how many ns each event of `work` would be shorter if a fused kernel computed losses over logits.

    The value is 0 for all events that are no part of such a loss, and if the bandwidth of the device's memory is not
    known.
    """
    work, c = attribution.work, attribution.trace.columns
    nothing = np.zeros(len(work.rows), np.int64)
    softmax = attribution.trace.text_matches({FORWARD})[c["name"][c["shape_row"]]]
    texts, calls = factorize(c["shape_text"][softmax])
    losses = [_logits_of(c.meta["shapes"][number])[:1] for number in texts.tolist()]
    sizes = {size for first in losses for size in first}
    if not sizes or not formulas.peaks:
        return nothing
    counts = np.bincount(calls, minlength=len(losses)).tolist()
    elements = sum(math.prod(size) * count for first, count in zip(losses, counts, strict=True) for size in first)
    least_ns = elements * _LEAST_PASSES * _LEAST_BYTES / formulas.peaks[1] * 1e9
    mine = _passes_over(attribution, sizes)
    part = max(0.0, 1 - least_ns / max(1, int(work.own[mine].sum())))
    return np.where(mine, work.own * part, 0).astype(np.int64)


def _passes_over(attribution: Attribution, sizes: AbstractSet[Logits]) -> Mask:
    """Return a mask of the events in `work` that read or write logits of the sizes `sizes`, except for products."""
    work, c = attribution.work, attribution.trace.columns
    known = c.meta["shapes"]
    touching = [n for n in distinct_values(c["shape_text"]).tolist() if not sizes.isdisjoint(_logits_of(known[n]))]
    on_logits = np.zeros(len(c["start"]), bool)
    on_logits[c["shape_row"][np.isin(c["shape_text"], touching)]] = True
    inside = innermost_selected(on_logits, c["parent"])
    multiplying = named(work, multiplies)
    return np.asarray(work.linked & (inside[work.launch] != NONE) & (work.kind == COMPUTE) & ~multiplying)


def _logits_of(shapes: str) -> list[Logits]:
    """Return the sizes of an operator's inputs that can be logits [..., vocabulary], from its shape text."""
    inputs = decoded_list(shapes.split("\0", maxsplit=1)[0])
    tensors = (size for size in inputs if isinstance(size, list) and len(size) >= 2)
    whole = (size for size in tensors if all(isinstance(number, int) for number in size))
    return [Logits(math.prod(size[:-1]), size[-1]) for size in whole if size[-1] >= _VOCABULARY_AT_LEAST]
