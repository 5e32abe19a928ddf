"""What a snapshot's peak would be with another batch, sequence, sharding, recomputation or optimizer type.

Every change moves or resizes the blocks of the recording; then the whole recording is added up again, so that the peak
may come at another moment. What only a rehearsal can tell (`workbench estimate`) is refused.
"""

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from analyzers import store
from analyzers.errors import InputError
from analyzers.memory.answers.scenario import ACTIVATIONS, GRADIENTS, PARAMETERS, Scene, recompute, scaling
from analyzers.memory.categories.categorise import categorise
from analyzers.memory.loading import opened
from analyzers.memory.model import DeviceTrace
from analyzers.memory.model_extras import Change, WhatIf
from analyzers.memory.reading.job import BYTES_OF, job_of
from analyzers.memory.reading.reader import CATEGORY_OF
from analyzers.memory.replay.lifetimes import Replay
from analyzers.run import Artefact

STATE = CATEGORY_OF["optimizer_state"]
PERIOD = {"full": 1, "selective": 2}
"""Every so many layers are computed again; of `selective` this is the trainer's default."""
COUNTER_BYTES = 8
"""Of an optimizer's state what is no larger counts steps."""
BLOCKED, LEAST_BLOCKED = "int8", 4096
MOMENT_BYTES = BYTES_OF | {BLOCKED: 1 + 4 / 256}
"""Of an element of a moment. bitsandbytes and torchao cut int8 into blocks of 256 with a scale in float32 each, and
leave moments of fewer than `LEAST_BLOCKED` elements as they are."""


def what_if(artefacts: Sequence[Artefact], asked: str, options: store.Options | None = None) -> list[WhatIf]:
    """The peaks of all devices of all files under the changes `asked`, such as `batch=2x,ac=full`.

    Raises:
        InputError: There is no such change, or a recording does not hold what it takes to tell.
    """
    changes = parsed(asked)
    return [
        answer(artefact, trace, changes)
        for artefact in artefacts
        for snapshot in [opened(artefact, options)]
        for trace in map(snapshot.device, snapshot.devices)
    ]


def parsed(asked: str) -> dict[str, str]:
    """Raises InputError where something is not of the form NAME=VALUE with a known name."""
    pairs = [part.partition("=") for part in asked.split(",") if part.strip()]
    changes = {name.strip(): value.strip() for name, _, value in pairs}
    if not changes or not all(changes.values()) or changes.keys() - CHANGES.keys():
        raise InputError(
            f"{asked!r} is no list of changes", f"write it like batch=2x,ac=full; there are {', '.join(CHANGES)}"
        )
    return changes


def answer(artefact: Artefact, trace: DeviceTrace, changes: dict[str, str]) -> WhatIf:
    replay = Replay(trace)
    scene = Scene.of(replay, categorise(replay), job_of(artefact.path))
    before = scene.categories(scene.replay.peak[1] + 1)
    made = [Change(name, value, CHANGES[name](scene, value)) for name, value in changes.items()]
    level = scene.level()
    place = int(level.argmax())
    ours = trace.snapshot.columns.meta["ours"]
    return WhatIf(
        path=str(artefact.path),
        rank=ours.get("rank", artefact.rank),
        device=trace.number,
        step=ours.get("step", artefact.step),
        changes=made,
        peak_bytes=scene.replay.peak[0],
        new_peak_bytes=int(level[place]),
        new_peak_entry=place - 1,
        categories=before,
        new_categories=scene.categories(place),
    )


def tokens(name: str) -> Callable[[Scene, str], str]:
    """A change of the batch or the sequence: both scale the positions of a pass."""

    def change(scene: Scene, value: str) -> str:
        require_known(scene, name)
        factor = ratio(value, getattr(scene.job, name, None), name)
        grows = scaling(scene)
        scene.size[grows] = np.round(scene.size[grows] * factor)
        return f"activations, inputs and temporaries of the passes x {factor:g}, as attention keeps no scores"

    return change


def require_known(scene: Scene, name: str) -> None:
    """Raises InputError where it is not known what most of the peak is."""
    held = scene.categories(scene.replay.peak[1] + 1)
    if held["unknown"] > sum(held.values()) / 2:
        raise InputError(
            f"{name}: it is not known what most of the peak is, so that nothing can be scaled",
            "record from the start with stacks='all', or with the trainer's recorder",
        )


def ratio(value: str, old: int | None, name: str) -> float:
    """`2x` as 2.0, or an absolute value over the old one."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(x?)", value)
    if not found or not float(found[1]):
        raise InputError(f"{name}={value}: neither a number nor a factor", f"write {name}=2x, or a whole number")
    if found[2]:
        return float(found[1])
    if not old:
        raise InputError(f"{name}={value}: no run.json tells what it was", f"give a factor, such as {name}=2x")
    return float(found[1]) / old


def dp_shard(scene: Scene, value: str) -> str:
    """States divided by the degree; a first sharding gathers weights in the passes."""
    old = scene.job.dp_shard if scene.job else None
    factor = ratio(value, old, "dp_shard")
    states = (scene.standing & (scene.category == PARAMETERS)) | np.isin(scene.category, [GRADIENTS, STATE])
    text = f"weights, gradients and optimizer state / {factor:g}"
    if old == 1:
        text += gather(scene)
    scene.size[states] = np.ceil(scene.size[states] / factor)
    return text


def gather(scene: Scene) -> str:
    """What FSDP2 holds beside the shards.

    In the passes that are the root's weights, and while a layer is at work its weights, and as much again for what is
    gathered ahead and for what is reduced.
    """
    weights = scene.standing & (scene.category == PARAMETERS)
    inside = np.zeros(len(scene.size), bool)
    per_layer = []
    for rows in scene.layers.values():
        inside[rows] = True
        per_layer.append(int(scene.size[rows[weights[rows]]].sum()))
    root, layer = int(scene.size[weights & ~inside].sum()), max(per_layer, default=0)
    for forward, backward in passes(scene):
        scene.extra[forward[0] + 1 : backward[1] + 1] += root
        scene.extra[forward[0] + 1 : forward[1] + 1] += 3 * layer
        scene.extra[backward[0] + 1 : backward[1] + 1] += 3 * layer
    return f"; gathered at a time: {root} bytes of the root and three times a layer's {layer}"


def passes(scene: Scene) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Of each step the entries of (the layers' forward, the layers' backward): between them lies the head."""
    rows = np.concatenate([*scene.layers.values(), np.zeros(0, np.int64)]).astype(np.int64)
    rows = rows[scene.category[rows] == ACTIVATIONS]
    forward, backward = scene.passes
    for start, end, back, done in zip(forward.start, forward.end, backward.start, backward.end, strict=False):
        own = rows[(scene.born[rows] >= start) & (scene.born[rows] < end)]
        if len(own):
            yield (int(start), int(scene.born[own].max())), (max(int(back), int(scene.died[own].min())), int(done))


def checkpointing(scene: Scene, value: str) -> str:
    """Activations of a layer come to be when its backward pass begins, but for its input.

    Raises:
        InputError: The mode cannot be told from a recording, or no layer is known by name.
    """
    if value not in PERIOD:
        raise InputError(f"ac={value}: a recording cannot tell", "ac is full or selective; `workbench estimate` can")
    if scene.job and scene.job.checkpointing != "none":
        raise InputError(f"ac={value}: the run recomputed already", "use `workbench estimate` with both settings")
    chosen = list(scene.layers.values())[PERIOD[value] - 1 :: PERIOD[value]]
    if not any((scene.category[rows] == ACTIVATIONS).any() for rows in chosen):
        raise InputError(f"ac={value}: no activation is known to be of a layer", "record with the trainer's recorder")
    recompute(scene, chosen)
    return f"each of {len(chosen)} layers keeps its input, and is computed again when its backward pass begins"


def optim_dtype(scene: Scene, value: str) -> str:
    """The moments in another type; the counters stay, and in blocks of int8 all that is small."""
    if value not in MOMENT_BYTES:
        raise InputError(f"optim_dtype={value}", f"one of {', '.join(MOMENT_BYTES)}")
    now = scene.job.state_bytes if scene.job else BYTES_OF["float32"]
    factor = MOMENT_BYTES[value] / now
    least = LEAST_BLOCKED * now if value == BLOCKED else COUNTER_BYTES + 1
    moments = (scene.category == STATE) & (scene.size >= least)
    scene.size[moments] = np.round(scene.size[moments] * factor)
    return f"the optimizer's moments x {factor:g}"


CHANGES: dict[str, Callable[[Scene, str], str]] = {
    "batch": tokens("batch"),
    "seq": tokens("seq"),
    "dp_shard": dp_shard,
    "ac": checkpointing,
    "optim_dtype": optim_dtype,
}
"""What can be asked -> what changes the scene and names its model."""
