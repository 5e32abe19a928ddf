"""Charts of a standalone document: inline SVG, without a script, from the views that the other faces draw from."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from analyzers.errors import WorkbenchError
from analyzers.memory import views as memory_views
from analyzers.report import Report
from analyzers.run import Artefact, Run
from analyzers.steps import views as step_views
from analyzers.words import duration, size
from workbench.ask import ROOMS, parts
from workbench.colours import CATEGORIES, qualitative
from workbench.console import clean
from workbench.present.sections import worst_first

WIDTH, HEIGHT = 900, 220
BUCKETS = 450
STEPS_AT_MOST = 450


def pictures(report: Report[Any], run: Run) -> Iterator[str]:
    """A chart for each room that has one, as long as its files are still there."""
    found = parts(report)
    with suppress(WorkbenchError):  # the tables stand without it
        if "memory" in found:
            yield from memory(found["memory"], report, run)
    with suppress(WorkbenchError):
        if "steps" in found:
            yield from steps(found["steps"], run, report.verdict.ranks)


def memory(data: Any, report: Report[Any], run: Run) -> Iterator[str]:
    """Memory over time of the device that ran out, or came nearest to it."""
    device = worst_first(data.devices)[0]
    artefact = behind(device.path, report, run)
    if artefact is None or not device.entries:
        return
    frame = memory_views.timeline(artefact, device=device.device, buckets=BUCKETS)
    rank = "" if device.rank is None else f", rank {device.rank}"
    title = f"Memory by category over the trace{rank}: {size(device.peak_allocated_bytes)} at the peak"
    yield chart(title, frame[[name for name in CATEGORIES if frame[name].any()]], CATEGORIES)


def behind(path: str, report: Report[Any], run: Run) -> Artefact | None:
    """The file that a report speaks of, also where the report bears a stand-in for its name."""
    given = next((one for one in report.inputs if one.path == path), None)
    told = given and (given.kind, given.rank, given.step, given.bytes)
    alike = [one for one in run.artefacts if (str(one.kind), one.rank, one.step, one.bytes) == told]
    return next((one for one in alike if str(one.path) == path), alike[0] if alike else None)


def steps(data: Any, run: Run, spoken_of: Sequence[int]) -> Iterator[str]:
    """What the steps of the rank that is spoken of are made of, else of the first."""
    logs = run.of(*ROOMS["steps"])
    if not logs:
        return
    ranks = [one.rank for one in data.ranks]
    rank = next((rank for rank in spoken_of if rank in ranks), ranks[0])
    phases = step_views.phases(logs, rank=rank).tail(STEPS_AT_MOST)
    shown = phases[phases.sum().sort_values(ascending=False).index[:8]]
    if not shown.to_numpy().any():
        return
    title = f"Phases of each step, rank {rank}: {duration(float(phases.sum(axis=1).max()))} at most"
    yield chart(title, shown, {name: qualitative(i) for i, name in enumerate(shown.columns)})


def chart(title: str, layers: pd.DataFrame, colours: Mapping[str, str]) -> str:
    """Layers on top of each other, a step wide for each row, with their legend."""
    names = [str(name) for name in layers]
    above = layers.to_numpy(float).cumsum(axis=1)
    scale = HEIGHT / max(float(above.max(initial=0.0)), 1e-12)
    floors = np.hstack([np.zeros((len(above), 1)), above[:, :-1]])
    bands = [
        f'<path d="{outline((floors[:, i] * scale).tolist(), (above[:, i] * scale).tolist())}" fill="{colours[name]}"/>'
        for i, name in enumerate(names)
    ]
    keys = "".join(
        f'<span><i style="background:{colours[name]}"></i>{text(name.replace("_", " "))}</span>' for name in names
    )
    drawn = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(title)}">{"".join(bands)}</svg>'
    return f'<figure><figcaption>{text(title)}</figcaption>{drawn}<p class="keys">{keys}</p></figure>'


def outline(low: Sequence[float], high: Sequence[float]) -> str:
    """The path around a band: along its upper edge from left to right, and back along the lower one."""
    wide = WIDTH / len(high)
    there = [f"{i * wide:.1f} {HEIGHT - y:.1f}H{(i + 1) * wide:.1f}" for i, y in enumerate(high)]
    back = [f"{(i + 1) * wide:.1f} {HEIGHT - y:.1f}H{i * wide:.1f}" for i, y in reversed(list(enumerate(low)))]
    return f"M{'L'.join([*there, *back])}Z"


def text(value: object) -> str:
    return escape(clean(value))
