"""Name gradients that no recorder named, by the parameters of the same size.

A gradient has the size of its parameter. If a rank has one parameter of a size, the gradient of this size is that of
this parameter; if it has several, the gradient belongs to one of them, and nothing says to which.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from analyzers import store
from analyzers.columns import Integers
from analyzers.memory.categorise import Guess, categorise
from analyzers.memory.job import job_of
from analyzers.memory.lifetimes import BEFORE, Replay
from analyzers.memory.loading import open_snapshot, rank_of, step_of
from analyzers.memory.model import (
    Activations,
    Breakdown,
    CategoryTensors,
    HighWaterMark,
    LayerActivations,
    LiveTensor,
    Overhead,
    SegmentKind,
)
from analyzers.memory.scenarios import layer_of, layer_order
from analyzers.memory.snapshot import CATEGORIES, BlockState, Category, DeviceTrace
from analyzers.memory.stacks import call_site
from analyzers.run import Artefact


def _gradient_names(replay: Replay, guess: Guess, rows: Integers) -> dict[int, str]:
    """Return {row: name} of the gradients without a label among some blocks, given by their rows in `Lifetimes`.

    The name is `gradient of layers.0.wq`, or `gradient of one of 4 parameters of this size`. A gradient as large as no
    parameter has no name.
    """
    lives = replay.lifetimes
    category, size = guess.category[rows], lives.size[rows]
    parameters = rows[category == Category.PARAMETERS]
    count = Counter(lives.size[parameters].tolist())
    alone = {int(lives.size[row]): int(row) for row in parameters.tolist()}
    gradients = Counter(size[category == Category.GRADIENTS].tolist())
    unnamed = rows[(category == Category.GRADIENTS) & (lives.label[rows] == 0)]
    return {
        row: name
        for row, bytes_ in zip(unnamed.tolist(), lives.size[unnamed].tolist(), strict=True)
        if (name := _name_of(replay, alone.get(bytes_, -1), count[bytes_], gradients[bytes_]))
    }


def _name_of(replay: Replay, parameter: int, parameters: int, gradients: int) -> str:
    """Return the name of a gradient: `parameters` and `gradients` of its size are live, `parameter` is a row of them.

    More gradients than parameters of one size cannot all be those of parameters; then the name is empty.
    """
    if not parameters or gradients > parameters:
        return ""
    if parameters > 1:
        return f"gradient of one of {parameters} parameters of this size"
    return f"gradient of {owner}" if (owner := _owner_of(replay, parameter)) else ""


def _owner_of(replay: Replay, parameter: int) -> str:
    lives, snapshot = replay.lifetimes, replay.trace.snapshot
    if label := snapshot.text(int(lives.label[parameter])):
        return label
    stack = int(np.asarray(lives.allocating_stack)[parameter])
    if not snapshot.frames.has_user_line(stack):
        return ""
    return f"the parameter of {snapshot.frames.user_stack(stack)[0]}"


_TENSORS_AT_MOST = 20
NAMES_AT_MOST = 3
_SHORT_LIVED = (Category.TEMPORARY, Category.WORKSPACE, Category.COMMUNICATION)
_SPECIAL_WEIGHTS = {
    "quantized weights": re.compile(r"fp8|float8|int8|int4|nf4|fp4|[48]bit|qweight|qzeros|absmax|quant", re.IGNORECASE),
    "adapter weights": re.compile(r"lora|adapter|\bdora|\bia3", re.IGNORECASE),
}
"""{kind of weights: pattern for their name or allocating line}, for weights that have an entry of their own."""


def breakdowns(artefacts: Sequence[Artefact], options: store.Options | None = None) -> list[Breakdown]:
    """Return a breakdown of the memory of each device in each of these snapshots.

    Raises:
        InputError: A file cannot be read.
    """
    return [
        breakdown(artefact, trace)
        for artefact in artefacts
        for snapshot in [open_snapshot(artefact, options)]
        for trace in map(snapshot.device, snapshot.devices)
    ]


def breakdown(artefact: Artefact, trace: DeviceTrace) -> Breakdown:
    """Return a breakdown of the memory of one device: by kind of segment, by category, by tensor and by layer."""
    replay, job, snapshot = Replay(trace), job_of(artefact.path), trace.snapshot
    guess = categorise(replay)
    peak, entry = replay.peak
    at_peak = tensors(replay, guess, replay.lifetimes.alive(entry))
    return Breakdown(
        path=str(artefact.path),
        rank=rank_of(snapshot, artefact),
        device=trace.number,
        step=step_of(snapshot, artefact),
        peak_bytes=peak,
        segments=_segment_kinds(trace),
        categories=_by_category(at_peak),
        high_water=_high_water_marks(replay, guess),
        tensors=at_peak[:_TENSORS_AT_MOST],
        activations=Activations(job, job.activation_bytes_per_layer if job else None, _by_layer(at_peak)),
        overhead=overhead(trace, replay),
    )


def _segment_kinds(trace: DeviceTrace) -> list[SegmentKind]:
    """Return, for each kind of segment, the number and the bytes of its segments at the end of the trace.

    Snapshots do not contain managed and pinned memory.
    """
    c = trace.snapshot.columns
    used = np.zeros(len(c["segment_total"]), np.int64)
    active = trace.block("state") != BlockState.INACTIVE
    np.add.at(used, trace.block("segment")[active], trace.block("size")[active])
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for segment in trace.segments.tolist():
        rows[_segment_kind(trace, segment)].append(segment)
    return [
        SegmentKind(kind, len(of_kind), reserved, allocated, reserved - allocated)
        for kind, of_kind in sorted(rows.items())
        for reserved, allocated in [(int(c["segment_total"][of_kind].sum()), int(used[of_kind].sum()))]
    ]


def _segment_kind(trace: DeviceTrace, segment: int) -> str:
    """Return the kind of a segment, such as `device, large blocks`; `segment` is its row in the columns `segment_*`."""
    c = trace.snapshot.columns
    if trace.snapshot.made_up_segments:
        return "process (ranges around tensors)"
    if c["segment_expandable"][segment]:
        return "device, expandable"
    return "device, large blocks" if c["segment_large"][segment] else "device, small blocks"


def tensors(replay: Replay, guess: Guess, rows: Integers) -> list[LiveTensor]:
    """Return the name, bytes and category of some blocks, the largest first; `rows` are their rows in `Lifetimes`.

    The name is the recorded label, or the line that allocated the block. A gradient that has neither is named after
    the parameter of its size.
    """
    gradients = _gradient_names(replay, guess, rows)
    lives, snapshot = replay.lifetimes, replay.trace.snapshot
    sites: dict[int, str] = {0: ""}
    live: list[LiveTensor] = []
    # By address where sizes are equal, so that two runs of the command print the same list.
    for row in rows[np.lexsort((lives.addr[rows], -lives.size[rows]))].tolist():
        stack = int(lives.allocating_stack[row])
        if stack not in sites:
            line = snapshot.frames.line(stack)
            sites[stack] = call_site(line) if line else ""
        name = snapshot.text(int(lives.label[row])) or gradients.get(row) or sites[stack] or "(no name)"
        category = narrow_category(CATEGORIES[guess.category[row]], f"{name} {sites[stack]}")
        live.append(LiveTensor(name, int(lives.size[row]), category))
    return live


def narrow_category(category: str, name_and_site: str) -> str:
    """Return `quantized weights` or `adapter weights` for parameters whose name or line shows this, else `category`."""
    if category != CATEGORIES[Category.PARAMETERS]:
        return category
    return next((name for name, pattern in _SPECIAL_WEIGHTS.items() if pattern.search(name_and_site)), category)


def _by_category(live: Sequence[LiveTensor]) -> list[CategoryTensors]:
    """Return, for each category, the bytes and the number of its tensors and the names of the largest ones.

    The category with the most bytes comes first.
    """
    groups: defaultdict[str, list[LiveTensor]] = defaultdict(list)
    for tensor in live:
        groups[tensor.category].append(tensor)
    rows = [
        CategoryTensors(
            name=name,
            bytes=sum(tensor.bytes for tensor in group),
            tensors=len(group),
            largest=list(dict.fromkeys(tensor.name for tensor in group))[:NAMES_AT_MOST],
        )
        for name, group in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row.bytes, row.name))


def _high_water_marks(replay: Replay, guess: Guess) -> list[HighWaterMark]:
    """Return, for each category of temporary memory, its highest live bytes and the trace entry that reached them.

    The entry is -1 if they were reached before the trace. Categories without memory are left out.
    """
    lives, length = replay.lifetimes, len(replay.trace)
    marks = []
    for category in _SHORT_LIVED:
        rows = np.flatnonzero(guess.category == category)
        change = np.zeros(length + 2, np.int64)  # position 0 is before the first entry
        np.add.at(change, lives.born[rows].astype(np.int64) + 1, lives.size[rows])
        np.add.at(change, lives.died[rows].astype(np.int64) + 1, -lives.size[rows])
        live = np.cumsum(change)[:-1]
        marks.append(HighWaterMark(CATEGORIES[category], int(live.max()), int(live.argmax()) + BEFORE))
    return [mark for mark in marks if mark.bytes]


def _by_layer(live: Sequence[LiveTensor]) -> list[LayerActivations]:
    """Return the bytes of the activations in each numbered layer, in the order of the layers."""
    sums: Counter[str] = Counter()
    for tensor in live:
        if tensor.category == CATEGORIES[Category.ACTIVATIONS] and (layer := layer_of(tensor.name)):
            sums[layer] += tensor.bytes
    return [LayerActivations(name, sums[name]) for name in sorted(sums, key=layer_order)]


def overhead(trace: DeviceTrace, replay: Replay) -> Overhead | None:
    """Return the memory used by the whole device or process, and the part that PyTorch's allocator does not track.

    The result is None if the recorder did not query the used memory.
    """
    # CUDA: the driver's number includes what the allocator reserved. CPU: the resident set includes the tensors.
    if used := trace.snapshot.recorded_number("device_used_bytes"):
        made_of = "the context, NCCL, cuBLAS and cuDNN, other processes on the device"
        return Overhead("device", used, trace.reserved_bytes, used - trace.reserved_bytes, made_of)
    if used := trace.snapshot.recorded_number("process_bytes"):
        made_of = "the interpreter, torch's libraries, gloo, data, the recorder's own notes"
        return Overhead("process", used, replay.end, used - replay.end, made_of)
    return None
