"""Where the memory of a device is: segments, holders, tensors, layers, and what no tensor holds."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from analyzers import store
from analyzers.columns import Column
from analyzers.memory.answers.scenario import LAYER
from analyzers.memory.answers.stacks import place
from analyzers.memory.categories.categorise import Guess, categorise
from analyzers.memory.loading import opened
from analyzers.memory.model import DeviceTrace
from analyzers.memory.model_extras import (
    Activations,
    Breakdown,
    HighWater,
    Holder,
    LayerActivations,
    Overhead,
    Segments,
    TensorHeld,
)
from analyzers.memory.reading.job import job_of
from analyzers.memory.reading.reader import CATEGORIES
from analyzers.memory.replay.lifetimes import BEFORE, Replay
from analyzers.run import Artefact

TOP = 20
NAMED = 3
PASSING = ("temporary", "workspace", "communication")
PARAMETERS = "parameters"
SPECIAL = {
    "quantized weights": re.compile(r"fp8|float8|int8|int4|nf4|fp4|[48]bit|qweight|qzeros|absmax|quant", re.IGNORECASE),
    "adapter weights": re.compile(r"lora|adapter|\bdora|\bia3", re.IGNORECASE),
}
"""Weights of a kind of their own, by their names or the lines that made them."""


def breakdowns(artefacts: Sequence[Artefact], options: store.Options | None = None) -> list[Breakdown]:
    """The tables of all devices of all files.

    Raises:
        InputError: A file cannot be read.
    """
    return [
        breakdown(artefact, trace)
        for artefact in artefacts
        for snapshot in [opened(artefact, options)]
        for trace in map(snapshot.device, snapshot.devices)
    ]


def breakdown(artefact: Artefact, trace: DeviceTrace) -> Breakdown:
    """The table of one device."""
    replay, job = Replay(trace), job_of(artefact.path)
    guess = categorise(replay)
    peak, entry = replay.peak
    held = tensors(replay, guess, replay.lifetimes.alive(entry))
    ours = trace.snapshot.columns.meta["ours"]
    return Breakdown(
        path=str(artefact.path),
        rank=ours.get("rank", artefact.rank),
        device=trace.number,
        step=ours.get("step", artefact.step),
        peak_bytes=peak,
        segments=segments(trace),
        holders=holders(held),
        high_water=high_water(replay),
        tensors=held[:TOP],
        activations=Activations(job, job.activation_bytes_per_layer if job else None, layers(held)),
        overhead=overhead(trace, replay),
    )


def segments(trace: DeviceTrace) -> list[Segments]:
    """The allocator's segments by kind: none of managed or pinned memory, as snapshots hold the device's alone."""
    c = trace.snapshot.columns
    used = np.zeros(len(c["segment_total"]), np.int64)
    active = trace.block("state") != 0
    np.add.at(used, trace.block("segment")[active], trace.block("size")[active])
    found: defaultdict[str, list[int]] = defaultdict(list)
    for segment in trace.segments.tolist():
        found[kind_of(trace, segment)].append(segment)
    return [
        Segments(kind, len(those), reserved, allocated, reserved - allocated)
        for kind, those in sorted(found.items())
        for reserved, allocated in [(int(c["segment_total"][those].sum()), int(used[those].sum()))]
    ]


def kind_of(trace: DeviceTrace, segment: int) -> str:
    c = trace.snapshot.columns
    if trace.snapshot.made_up_segments:
        return "process (ranges around tensors)"
    if c["segment_expandable"][segment]:
        return "device, expandable"
    return "device, large blocks" if c["segment_large"][segment] else "device, small blocks"


def tensors(replay: Replay, guess: Guess, rows: Column) -> list[TensorHeld]:
    """The blocks of `rows`, largest first."""
    lives, snapshot = replay.lifetimes, replay.trace.snapshot
    lines: dict[int, str] = {}
    found = []
    for row in rows[np.lexsort((lives.addr[rows], -lives.size[rows]))].tolist():
        stack = 0 if lives.freed_stack[row] else int(lives.stack[row])
        if stack not in lines:
            line = snapshot.frames.line(stack)
            lines[stack] = place(line) if line else ""
        name = snapshot.text(int(lives.label[row])) or lines[stack] or "(no name)"
        category = CATEGORIES[guess.category[row]]
        found.append(TensorHeld(name, int(lives.size[row]), special(category, f"{name} {lines[stack]}")))
    return found


def special(category: str, signs: str) -> str:
    """A narrower category of weights, where a name or a line says so."""
    if category != PARAMETERS:
        return category
    return next((name for name, pattern in SPECIAL.items() if pattern.search(signs)), category)


def holders(held: list[TensorHeld]) -> list[Holder]:
    """The categories, the largest first."""
    found: defaultdict[str, list[TensorHeld]] = defaultdict(list)
    for tensor in held:
        found[tensor.category].append(tensor)
    rows = [
        Holder(name, sum(t.bytes for t in those), len(those), list(dict.fromkeys(t.name for t in those))[:NAMED])
        for name, those in found.items()
    ]
    return sorted(rows, key=lambda holder: (-holder.bytes, holder.name))


def high_water(replay: Replay) -> list[HighWater]:
    """The highest moments of what comes and goes, each of its own."""
    lives, guess, length = replay.lifetimes, categorise(replay), len(replay.trace)
    found = []
    for name in PASSING:
        rows = np.flatnonzero(guess.category == CATEGORIES.index(name))
        change = np.zeros(length + 2, np.int64)  # the first place stands for what is older than the trace
        np.add.at(change, lives.born[rows].astype(np.int64) + 1, lives.size[rows])
        np.add.at(change, lives.died[rows].astype(np.int64) + 1, -lives.size[rows])
        level = np.cumsum(change)[:-1]
        found.append(HighWater(name, int(level.max()), int(level.argmax()) + BEFORE))
    return [one for one in found if one.bytes]


def layers(held: list[TensorHeld]) -> list[LayerActivations]:
    """The activations of each numbered layer, in order."""
    sums: Counter[str] = Counter()
    for tensor in held:
        if tensor.category == "activations" and (named := LAYER.match(tensor.name)):
            sums[named[0].rstrip(".")] += tensor.bytes
    return [LayerActivations(name, sums[name]) for name in sorted(sums, key=in_order)]


def in_order(layer: str) -> tuple[str, int]:
    prefix, _, number = layer.rpartition(".")
    return prefix, int(number)


def overhead(trace: DeviceTrace, replay: Replay) -> Overhead | None:
    """None where the snapshot does not say how much was used."""
    ours = trace.snapshot.columns.meta["ours"]
    if used := ours.get("device_used_bytes"):
        made_of = "the context, NCCL, cuBLAS and cuDNN, other processes on the device"
        return Overhead("device", used, trace.reserved_bytes, used - trace.reserved_bytes, made_of)
    if used := ours.get("process_bytes"):
        made_of = "the interpreter, torch's libraries, gloo, data, the recorder's own notes"
        return Overhead("process", used, replay.end, used - replay.end, made_of)
    return None
