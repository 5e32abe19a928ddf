"""Tables of an estimate of the memory that a job will need."""

from collections.abc import Mapping

from analyzers.words import duration, percent, share, size
from workbench.documents import EstimateData, PlanData, PlannedSettings, ProofData, RankMemory, RerunData, Settings
from workbench.present.table import Table, table

_MESH = ("replicate", "shard", "context", "tensor", "pipeline")


def plan_tables(data: PlanData) -> list[Table]:
    """Return the tables of a plan: the settings that fit, and details of the fastest settings.

    The details are the same settings with the next larger batch, and the TOML lines of the settings.
    """
    heads = "rank> | mesh | batch> | recompute | weights | peak> | of the limit> | tokens/s> | step> | tokens a step>"
    rows = [row(str(one.rank or number), one, data.limit_bytes) for number, one in enumerate(data.plans, 1)]
    equal = f"; equal ranks are within {percent(data.speed_margin)}" if data.speed_margin else ""
    larger = [row("", data.next_larger, data.limit_bytes)] if data.next_larger else []
    lines = [(line,) for line in _toml_lines(data.plans[0])] if data.plans else []
    return [
        table(f"Settings that fit, by the estimated speed on {data.device}{equal}", heads, rows),
        table("The next larger batch of the first", heads, larger),
        table("Lines for the configuration of the first", "TOML", lines, len(lines)),
    ]


def row(number: str, planned: PlannedSettings, limit: int) -> tuple[object, ...]:
    """Return the cells of the table row for one choice of settings; `limit` is the memory of the device in bytes."""
    settings = planned.settings
    degrees = ((name, settings[f"parallelism.{prefix(name)}_degree"]) for name in _MESH)
    mesh = " x ".join(f"{name} {degree}" for name, degree in degrees if degree != 1) or "one rank"
    mode = settings["activation_checkpoint.mode"]
    option = settings.get("activation_checkpoint.selective_ac_option", "")
    weights = [str(settings["training.dtype"])]
    weights += ["offloaded"] if settings["training.enable_cpu_offload"] else []
    return (
        number, mesh, settings["training.local_batch_size"], f"{mode} {option}".strip(), ", ".join(weights),
        size(planned.peak_bytes), share(planned.peak_bytes, limit), f"{planned.tokens_per_s:,.0f}",
        duration(planned.step_s), f"{planned.tokens_per_step:,}",
    )  # fmt: skip


def prefix(name: str) -> str:
    return f"data_parallel_{name}" if name in ("replicate", "shard") else f"{name}_parallel"


def _toml_lines(planned: PlannedSettings) -> list[str]:
    lines: list[str] = []
    for key, value in planned.settings.items():
        section, _, name = key.partition(".")
        lines += [f"[{section}]"] if f"[{section}]" not in lines else []
        text = str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else value
        lines.append(f"{name} = {text}")
    return lines


NAMES = {
    "fwd": "the forward pass before the first layer",
    "fwd head": "the forward pass of the output layer and the loss",
    "bwd": "the backward pass of the loss and the output layer",
    "grad_clip": "gradient clipping",
    "optim": "the optimizer step",
    "eval": "the validation",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer step",
}
_PASSES = {"fwd": "the forward pass", "bwd": "the backward pass"}
_LAYERS = {
    "+0": "the first layer",
    "+1": "the second layer",
    "middle": "a layer between",
    "-2": "the last layer but one",
    "-1": "the last layer",
}
"""{name of a layer in the names of windows: words for it}; only these layers of a model have windows of their own."""


def window_words(window: str) -> str:
    """Return a window of the step as a phrase: `the backward pass of the last layer` for `bwd -1`.

    In a pipeline, `bwd -1 #0.2` is the window of the second pass through the rank's model part 0. An unknown name is
    returned unchanged.
    """
    name, _, turn = window.partition(" #")
    kind, _, layer = name.partition(" ")
    words = NAMES.get(name) or (
        f"{_PASSES[kind]} of {_LAYERS[layer]}" if kind in _PASSES and layer in _LAYERS else name
    )
    part, _, count = turn.partition(".")
    return f"{words}, pass {count} of model part {part}" if count else words


def estimate_tables(data: EstimateData) -> list[Table]:
    """Return the tables of an estimate of the memory that a job will need.

    The first table has the peak of each rank. For the rank with the highest peak, tables follow of its categories,
    modules and windows (parts of the step). The last table has settings that need less memory.
    """
    fullest = max(data.ranks, key=lambda r: r.peak_bytes)
    categories = sorted(fullest.categories.items(), key=lambda item: -item[1])
    return [
        table(
            "Peak by rank",
            "first rank> | ranks like it> | peak> | reached in" + (" | line" if data.device else ""),
            (
                (
                    r.first_rank,
                    r.count,
                    size(r.peak_bytes),
                    window_words(r.peak_window),
                    *([r.peak_line] if data.device else []),
                )
                for r in data.ranks
            ),
        ),
        table(
            "Memory by category at the peak",
            "category | bytes> | share>",
            ((name, size(count), share(count, fullest.peak_bytes)) for name, count in categories if count),
        ),
        _modules_table(fullest),
        table(
            "Peak of each part of the step",
            "part of the step | bytes> | share of the peak>",
            (
                (window_words(name), size(count), share(count, fullest.peak_bytes))
                for name, count in fullest.windows.items()
            ),
            20,
        ),
        table(
            "Settings that need less memory",
            "setting | peak>",
            ((o.setting, size(o.peak_bytes)) for o in data.options),
        ),
    ]


def _modules_table(rank: RankMemory) -> Table:
    """Return the table of the modules that use the most memory at a rank's peak, with their largest categories."""
    return table(
        f"Memory by module at the peak of rank {rank.first_rank} (* stands for all layers)",
        "module | bytes> | share> | of it",
        (
            (name, size(sum(held.values())), share(sum(held.values()), rank.peak_bytes), parts_of(held))
            for name, held in rank.modules.items()
        ),
    )


def parts_of(held: Mapping[str, int]) -> str:
    """Return the categories of a module's memory, largest first: `parameters 3.0 GiB, gradients 1.5 GiB`."""
    largest = sorted(held.items(), key=lambda item: -item[1])
    return ", ".join(f"{name.replace('_', ' ')} {size(count)}" for name, count in largest)


def proof_tables(data: ProofData) -> list[Table]:
    rows, margin = [], "at least" if data.margin is None else f"±{percent(data.margin)}"
    if data.needed_bytes:
        rows.append(("as it was", size(data.needed_bytes), "", "an allocation failed", "", ""))
    if data.rerun and data.applied:
        measured = data.rerun.peak_bytes
        rows.append(
            (
                _phrase(data.applied.changes),
                size(data.applied.predicted_bytes),
                margin,
                "not recorded" if measured is None else size(measured),
                "" if data.error is None else f"{data.error:+.1%}",
                "yes" if data.rerun.passed else "no",
            )
        )
    compared = (
        (
            _phrase(one.changes),
            size(one.predicted_bytes),
            share(one.predicted_bytes, data.room_bytes),
            "yes" if one.fits else "no",
        )
        for one in data.considered
    )
    return [
        table("Predicted against measured", "settings | predicted> | margin> | measured> | error> | fits", rows),
        table(
            f"Changes compared, with room for {size(data.room_bytes)}",
            "change | predicted> | of the room> | fits",
            compared,
        ),
    ]


def rerun_tables(data: RerunData) -> list[Table]:
    jumps = data.jumps
    if jumps is None:
        return []
    named = (
        ("first in the forward pass", jumps.forward),
        ("first in the backward pass", jumps.backward),
        ("first gradient of a parameter", jumps.gradient),
        ("largest jump of such a gradient", jumps.largest),
    )
    rows = (
        (what, one.tensor, one.kind.replace("_", " "), f"{one.before:.4g}", f"{one.norm:.4g}", f"{one.factor:.3g}")
        for what, one in named
        if one
    )
    columns = "what | tensor | kind | largest norm before> | norm> | times>"
    return [table(f"Tensors that jumped first, in step {jumps.step}", columns, rows)]


def _phrase(change: Settings) -> str:
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in change.items())
