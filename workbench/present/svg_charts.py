"""Draw the charts of a standalone HTML page as inline SVG without scripts; the terminal app draws the same data."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
import pandas as pd

from analyzers.errors import WorkbenchError
from analyzers.memory import views as memory_views
from analyzers.memory.model import MemoryData
from analyzers.parity import BisectData, ParityData
from analyzers.report import Report
from analyzers.run import Artefact, Run
from analyzers.steps import views as step_views
from analyzers.steps.model import StepsData
from analyzers.tokens import TokensData
from analyzers.words import duration, size
from workbench.ask import ROOMS
from workbench.colours import CATEGORIES, css_category, css_phase
from workbench.present.curve_charts import bisect_charts, parity_charts
from workbench.present.figure import HEIGHT, WIDTH, figure
from workbench.present.phase_titles import phase_title
from workbench.present.room_data import room_data
from workbench.present.tables.memory import worst_first
from workbench.present.token_flow import token_figures

BUCKETS = 450
STEPS_AT_MOST = 450
PHASES = 8


def charts(report: Report[object], run: Run) -> Iterator[str]:
    """Yield the HTML figures of a report.

    A parity report has charts of its curves, that of two recorded runs has their differences, a report on tokens its
    sequences. Other reports have charts of memory and of step phases, if the files of the run still exist.
    """
    if isinstance(report.data, ParityData):
        yield from parity_charts(report.data)
        return
    if isinstance(report.data, BisectData):
        with suppress(WorkbenchError):
            yield from bisect_charts(report.data)
        return
    if isinstance(report.data, TokensData):
        yield from token_figures(report.data.rows if report.data.statistics else [])
        return
    rooms = room_data(report)
    with suppress(WorkbenchError):  # the tables stand without it
        if rooms.memory:
            yield from memory_chart(rooms.memory, report, run)
    with suppress(WorkbenchError):
        if rooms.steps:
            yield from phase_chart(rooms.steps, run, report.verdict.ranks)


def memory_chart(data: MemoryData, report: Report[object], run: Run) -> Iterator[str]:
    """Yield the HTML figure of the memory of one device over time.

    It is the device that ran out of memory, or else the one with the highest peak.
    """
    device = worst_first(data.devices)[0]
    artefact = file_behind(device.path, report, run)
    if artefact is None or not device.entries:
        return
    frame = memory_views.timeline(artefact, device=device.device, buckets=BUCKETS)
    rank = "" if device.rank is None else f", rank {device.rank}"
    title = f"Memory by category over the trace{rank}: {size(device.peak_allocated_bytes)} at the peak"
    yield stacked_chart(
        title,
        frame[[name for name in CATEGORIES if frame[name].any()]],
        {name: css_category(name) for name in CATEGORIES},
    )


def file_behind(path: str, report: Report[object], run: Run) -> Artefact | None:
    """Return the file of the run that the report lists as `path`; None if it does not exist.

    In an anonymised report `path` is a replacement, so the file is identified by its kind, rank, step and size.
    """
    named = next((file for file in report.inputs if file.path == path), None)
    # Rank, step and size together identify a file of a run, whatever its name.
    facts = named and (named.kind, named.rank, named.step, named.bytes)
    same = [file for file in run.artefacts if (str(file.kind), file.rank, file.step, file.bytes) == facts]
    return next((file for file in same if str(file.path) == path), same[0] if same else None)


def phase_chart(data: StepsData, run: Run, culprits: Sequence[int]) -> Iterator[str]:
    """Yield the HTML figure of the time in each phase of each step, for a single rank.

    It is the first rank in `culprits` that has a step log, else the first rank of the report.
    """
    logs = run.of(*ROOMS["steps"])
    if not logs:
        return
    ranks = [rank.rank for rank in data.ranks]
    rank = next((rank for rank in culprits if rank in ranks), ranks[0])
    phases = step_views.phases(logs, rank=rank).tail(STEPS_AT_MOST)
    longest = phases.sum().nlargest(PHASES).index
    shown = phases[sorted(longest, key=lambda name: name in step_views.NOT_TRAINING)]
    if not shown.to_numpy().any():
        return
    title = f"Phases of each step, rank {rank}: the longest step takes {duration(float(phases.sum(axis=1).max()))}"
    colours = {phase_title(name): css_phase(name) for name in shown.columns}
    yield stacked_chart(title, shown.rename(columns=phase_title), colours)


def stacked_chart(title: str, layers: pd.DataFrame, colours: Mapping[str, str]) -> str:
    """Return an HTML figure of a stacked chart; `layers` has a column per band and a row per x position."""
    names = [str(name) for name in layers]
    above = layers.to_numpy(float).cumsum(axis=1)
    # Layers without a byte must not divide by zero.
    scale = HEIGHT / max(float(above.max(initial=0.0)), 1e-12)
    below = np.hstack([np.zeros((len(above), 1)), above[:, :-1]])
    bands = [
        f'<path d="{outline((below[:, i] * scale).tolist(), (above[:, i] * scale).tolist())}" fill="{colours[name]}"/>'
        for i, name in enumerate(names)
    ]
    return figure(title, "".join(bands), {name: colours[name] for name in names})


def outline(low: Sequence[float], high: Sequence[float]) -> str:
    """Return the SVG path that outlines one band of a stacked chart.

    `low` and `high` are the heights of the band's lower and upper edge at each x position.
    """
    wide = WIDTH / len(high)
    there = [f"{i * wide:.1f} {HEIGHT - y:.1f}H{(i + 1) * wide:.1f}" for i, y in enumerate(high)]
    back = [f"{(i + 1) * wide:.1f} {HEIGHT - y:.1f}H{i * wide:.1f}" for i, y in reversed(list(enumerate(low)))]
    return f"M{'L'.join([*there, *back])}Z"
