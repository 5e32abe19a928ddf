"""Predict a snapshot's peak with another batch, sequence, sharding, recomputation or type of optimizer state.

Each change moves or resizes the blocks of the recording (`scenario`). Then the live bytes are computed again, so the
new peak may be at another entry. Changes that only a real step can show are refused; `workbench estimate` runs such a
step.
"""

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from analyzers import store
from analyzers.columns import Mask
from analyzers.errors import InputError
from analyzers.memory.categorise import categorise
from analyzers.memory.job import BYTES_OF, job_of
from analyzers.memory.lifetimes import Replay
from analyzers.memory.loading import open_snapshot, rank_of, step_of
from analyzers.memory.model import SettingChange, WhatIf
from analyzers.memory.scenarios import Scenario, grows_with_batch, recompute
from analyzers.memory.snapshot import Category, DeviceTrace
from analyzers.memory.unusual_use import score_blocks
from analyzers.run import Artefact

_RECOMPUTED_EVERY = {"full": 1, "selective": 2}
"""{mode of activation checkpointing: n}, where every n-th layer is recomputed (`selective`: the trainer's default)."""
_COUNTER_BYTES = 8
"""The largest size in bytes of optimizer state that is taken for a step counter, which keeps its data type."""
_BLOCKWISE, _BLOCKWISE_ELEMENTS_AT_LEAST = "int8", 4096
_MOMENT_BYTES = BYTES_OF | {_BLOCKWISE: 1 + 4 / 256}
"""{data type: bytes of one element of an optimizer's moment}.

For int8, bitsandbytes and torchao keep a scale in float32 for each block of 256 elements, and do not quantize moments
of fewer than `_BLOCKWISE_ELEMENTS_AT_LEAST` elements.
"""
_VALUE = re.compile(r"(\d+(?:\.\d+)?)(x?)")


def what_if(artefacts: Sequence[Artefact], changes: str, options: store.Options | None = None) -> list[WhatIf]:
    """Return the predicted peak of each device in each snapshot after changes such as `batch=2x,ac=full`.

    Raises:
        InputError: There is no such change, or a recording lacks what is needed to predict it.
    """
    settings = _parse_changes(changes)
    return [
        predict(artefact, trace, settings)
        for artefact in artefacts
        for snapshot in [open_snapshot(artefact, options)]
        for trace in map(snapshot.device, snapshot.devices)
    ]


def _parse_changes(text: str) -> dict[str, str]:
    """Return the new value of each setting in a text such as `batch=2x,ac=full`.

    Raises:
        InputError: A part is not of the form NAME=VALUE, or its name is unknown.
    """
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    settings = {name.strip(): value.strip() for name, _, value in pairs}
    if not settings or not all(settings.values()) or settings.keys() - _CHANGES.keys():
        raise InputError(
            f"{text!r} is no list of changes", f"write it like batch=2x,ac=full; there are {', '.join(_CHANGES)}"
        )
    return settings


def predict(artefact: Artefact, trace: DeviceTrace, settings: dict[str, str]) -> WhatIf:
    """Return the predicted peak of one device with these settings changed, in the given order."""
    replay = Replay(trace)
    scenario = Scenario.recorded(replay, categorise(replay), job_of(artefact.path))
    before = scenario.categories_at(replay.peak[1] + 1)
    changes = [SettingChange(name, value, _CHANGES[name](scenario, value)) for name, value in settings.items()]
    live = scenario.live_bytes()
    peak = int(live.argmax())
    return WhatIf(
        path=str(artefact.path),
        rank=rank_of(trace.snapshot, artefact),
        device=trace.number,
        step=step_of(trace.snapshot, artefact),
        changes=changes,
        peak_bytes=replay.peak[0],
        new_peak_bytes=int(live[peak]),
        new_peak_entry=peak - 1,
        categories=before,
        new_categories=scenario.categories_at(peak),
    )


def _scale_tokens(name: str) -> Callable[[Scenario, str], str]:
    """Return a function that applies a new `batch` or `seq` (`name`) to a scenario, by resizing its blocks in place.

    The function takes the scenario and the new value, such as `2x`, and returns a description of the change. Both
    settings scale the number of tokens in a pass, so both resize the same blocks. Attention scores grow with the square
    of the sequence.
    """

    def change(scenario: Scenario, value: str) -> str:
        _require_known_peak(scenario, name)
        factor = ratio(value, getattr(scenario.job, name, None), name)
        scores = score_blocks(scenario.replay, scenario.guess) if name == "seq" else np.zeros(len(scenario.size), bool)
        grows = grows_with_batch(scenario) & ~scores
        scenario.size[grows] = np.round(scenario.size[grows] * factor)
        scenario.size[scores] = np.round(scenario.size[scores] * factor**2)
        return (
            f"activations, inputs and temporaries of the passes x {factor:g}{_growth_of_scores(name, scores, factor)}"
        )

    return change


def _growth_of_scores(name: str, scores: Mask, factor: float) -> str:
    """Return the end of a sentence on how the blocks in `scores` grow with the sequence; empty for another setting."""
    if name != "seq":
        return ""
    if not scores.any():
        return "; no attention scores were recognised, which would grow with its square"
    return f", but attention scores (recognised by their stacks and sizes) x {factor**2:g}, the square"


def _require_known_peak(scenario: Scenario, name: str) -> None:
    """Refuse to predict if more than half of the bytes at the peak are of unknown category.

    `name` is the setting to be changed; the error message names it.

    Raises:
        InputError: More than half of the bytes at the peak are of unknown category.
    """
    # Where less is known, scaling would miss most of the peak.
    at_peak = scenario.categories_at(scenario.replay.peak[1] + 1)
    if at_peak["unknown"] > sum(at_peak.values()) / 2:
        raise InputError(
            f"{name}: it is not known what most of the peak is, so that nothing can be scaled",
            "record from the start with stacks='all', or with the trainer's recorder",
        )


def ratio(value: str, old: int | None, name: str) -> float:
    """Return the factor of a change: 2.0 for the value `2x`; for a plain number, this number divided by `old`.

    `old` is the recorded value, None if no run.json records it. `name` is the setting; the error message names it.

    Raises:
        InputError: The value is neither a factor nor a number, or a plain number is given and `old` is not known.
    """
    matched = _VALUE.fullmatch(value)
    if not matched or not float(matched[1]):
        raise InputError(f"{name}={value}: neither a number nor a factor", f"write {name}=2x, or a whole number")
    if matched[2]:
        return float(matched[1])
    if not old:
        raise InputError(f"{name}={value}: no run.json records its value", f"give a factor, such as {name}=2x")
    return float(matched[1]) / old


def shard(scenario: Scenario, value: str) -> str:
    """Divide the bytes of parameters, gradients and optimizer state by the factor by which the sharding degree grows.

    `value` is the new degree (`dp_shard`) or a factor, such as `2x`. If run.json says that the run was not sharded, the
    buffers that FSDP gathers during the passes are added. The scenario is changed in place; the result is a description
    of the change.
    """
    old = scenario.job.dp_shard if scenario.job else None
    factor = ratio(value, old, "dp_shard")
    states = (scenario.is_older & (scenario.category == Category.PARAMETERS)) | np.isin(
        scenario.category, (Category.GRADIENTS, Category.OPTIMIZER_STATE)
    )
    # Only parameters older than the trace are shards; later ones are gathered copies, which do not shrink.
    model = f"weights, gradients and optimizer state / {factor:g}"
    if old == 1:
        model += _gather_weights(scenario)
    scenario.size[states] = np.ceil(scenario.size[states] / factor)
    return model


def _gather_weights(scenario: Scenario) -> str:
    """Add to a scenario the memory that FSDP2 needs during the passes in addition to the shards; return a description.

    During the passes FSDP2 holds the root module's weights. While a layer runs, FSDP2 also holds the layer's weights,
    the same number of bytes for the next layer (gathered ahead), and the same number again for the gradients being
    reduced.
    """
    weights = scenario.is_older & (scenario.category == Category.PARAMETERS)
    in_layer = np.zeros(len(scenario.size), bool)
    per_layer = []
    for rows in scenario.layers.values():
        in_layer[rows] = True
        per_layer.append(int(scenario.size[rows[weights[rows]]].sum()))
    root, layer = int(scenario.size[weights & ~in_layer].sum()), max(per_layer, default=0)
    for forward, backward in _layer_passes(scenario):
        # + 1, as position 0 is before the first entry. The root stays gathered from forward to backward.
        scenario.extra[forward[0] + 1 : backward[1] + 1] += root
        scenario.extra[forward[0] + 1 : forward[1] + 1] += 3 * layer
        scenario.extra[backward[0] + 1 : backward[1] + 1] += 3 * layer
    return f"; gathered at a time: {root} bytes of the root and three times a layer's {layer}"


def _layer_passes(scenario: Scenario) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield, for each step, the (start, end) trace entries of its forward and its backward pass through the layers.

    The forward pass ends with the last activation that a layer allocates. The backward pass begins with the first
    activation that is freed. In between the model's head runs, for which no layer is gathered.
    """
    rows = np.concatenate([*scenario.layers.values(), np.zeros(0, np.int64)]).astype(np.int64)
    rows = rows[scenario.category[rows] == Category.ACTIVATIONS]
    bounds = (scenario.forward.start, scenario.forward.end, scenario.backward.start, scenario.backward.end)
    for start, end, backward, done in zip(*(column.tolist() for column in bounds), strict=False):
        of_step = rows[(scenario.born[rows] >= start) & (scenario.born[rows] < end)]
        if len(of_step):
            last_saved, first_freed = int(scenario.born[of_step].max()), int(scenario.died[of_step].min())
            yield (start, last_saved), (max(backward, first_freed), done)


def checkpoint(scenario: Scenario, value: str) -> str:
    """Move the activations of each recomputed layer, except its input, to the start of the layer's backward pass.

    `value` is the mode: with `full` every layer is recomputed, with `selective` every second one. The scenario is
    changed in place; the result is a description of the change.

    Raises:
        InputError: The mode cannot be predicted from a recording, the run recomputed layers already, no activation is
            known to belong to a layer, or no forward pass with its backward pass is known.
    """
    if value not in _RECOMPUTED_EVERY:
        raise InputError(f"ac={value}: a recording cannot tell", "ac is full or selective; `workbench estimate` can")
    if scenario.job and scenario.job.checkpointing != "none":
        raise InputError(f"ac={value}: the run recomputed already", "use `workbench estimate` with both settings")
    layers = list(scenario.layers.values())[_RECOMPUTED_EVERY[value] - 1 :: _RECOMPUTED_EVERY[value]]
    if not any((scenario.category[rows] == Category.ACTIVATIONS).any() for rows in layers):
        raise InputError(f"ac={value}: no activation is known to be of a layer", "record with the trainer's recorder")
    if scenario.failed_in_forward:
        raise InputError(
            f"ac={value}: unknown, as a request failed in a forward pass, so that its backward pass was not recorded",
            "use `workbench estimate`, which runs a whole step",
        )
    if not recompute(scenario, layers):
        raise InputError(
            f"ac={value}: unknown, as neither annotations nor stacks show what the layers save in a forward pass",
            "record a whole step with stacks='all', or use `workbench estimate`",
        )
    return f"each of {len(layers)} layers keeps its input, and is computed again when its backward pass begins"


def _change_moment_type(scenario: Scenario, value: str) -> str:
    """Resize the optimizer's moments to the data type `value`; return a text on the change.

    The scenario is changed in place. Step counters keep their type; with int8, small moments keep theirs, too.

    Raises:
        InputError: The type is not known.
    """
    if value not in _MOMENT_BYTES:
        raise InputError(f"optim_dtype={value}", f"one of {', '.join(_MOMENT_BYTES)}")
    now = scenario.job.state_bytes if scenario.job else BYTES_OF["float32"]
    factor = _MOMENT_BYTES[value] / now
    # One byte more than a counter, so that every real moment changes its type.
    smallest = _BLOCKWISE_ELEMENTS_AT_LEAST * now if value == _BLOCKWISE else _COUNTER_BYTES + 1
    moments = (scenario.category == Category.OPTIMIZER_STATE) & (scenario.size >= smallest)
    scenario.size[moments] = np.round(scenario.size[moments] * factor)
    return f"the optimizer's moments x {factor:g}"


_CHANGES: dict[str, Callable[[Scenario, str], str]] = {
    "batch": _scale_tokens("batch"),
    "seq": _scale_tokens("seq"),
    "dp_shard": shard,
    "ac": checkpoint,
    "optim_dtype": _change_moment_type,
}
"""{setting: function that applies its new value to a scenario, and returns a description of the change}."""
