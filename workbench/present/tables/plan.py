"""Tables of a plan: the settings that fit into a device's memory, fastest first, and the TOML lines that set them."""

from analyzers.words import duration, percent, share, size
from workbench.present.table import Table, table
from workbench.trainer_answers import PlanData, PlannedSettings

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
    """Return the start of the configuration key of a mesh degree: `data_parallel_shard` for `shard`."""
    return f"data_parallel_{name}" if name in ("replicate", "shard") else f"{name}_parallel"


def _toml_lines(planned: PlannedSettings) -> list[str]:
    """Return the settings as lines of a TOML file."""
    lines: list[str] = []
    for key, value in planned.settings.items():
        section, _, name = key.partition(".")
        lines += [f"[{section}]"] if f"[{section}]" not in lines else []
        text = str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else value
        lines.append(f"{name} = {text}")
    return lines
