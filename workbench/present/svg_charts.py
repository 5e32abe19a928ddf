"""Draw memory and steps as inline SVG for a standalone HTML page, without scripts; the terminal app draws the same."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analyzers.memory import views as memory_views
from analyzers.memory.model import Device, MemoryData, Oom
from analyzers.report import Report
from analyzers.run import TIMED, Artefact, Run
from analyzers.steps import views as step_views
from analyzers.steps.model import StepsData
from analyzers.tokens.model import ROLE_NAMES, Position, Role, TokensData
from analyzers.words import duration, size
from workbench.axes import StepMarks, Tick, apart, byte_marks, duration_marks, tick_distance
from workbench.colours import CATEGORIES, DARK, css_category, css_phase
from workbench.console import clean
from workbench.present.figure import HEIGHT, WIDTH, Axes, figure, text
from workbench.present.table import phase_title
from workbench.present.tables.memory import worst_first

if TYPE_CHECKING:
    from rich.text import Text


BUCKETS = 450
_STEPS_AT_MOST = 450
PHASES, LEVELS = 8, 5
_STEP_LABELS, _STEPS_SHOWN = 6, 2
_LABEL = 0.14
"""The least space between the labels of two steps, as a share of the width: on a phone it fits four digits."""
_ANGLES = (0, 45, 135)
"""The angles of the hatching of bands that are no phase of the training; these bands are all grey."""


StepStart = tuple[int, float]
"""The start of a step, as (number of the step, trace entry)."""


def memory_chart(data: MemoryData, report: Report[object], run: Run) -> Iterator[str]:
    """Yield the HTML figure of the memory of one device over time.

    It is the device that ran out of memory, or else the one with the highest peak.
    """
    device = worst_first(data.devices)[0]
    artefact = _file_behind(device.path, report, run)
    if artefact is None or not device.entries:
        return
    starts = _step_starts(artefact, device.device, run)
    shown = last_steps(starts, device)
    frame = memory_views.timeline(artefact, device=device.device, buckets=BUCKETS, window=shown)
    rank = "" if device.rank is None else f", rank {device.rank}"
    when = f"in the last {_STEPS_SHOWN} steps" if shown else "over the trace"
    title = f"Memory by category {when}{rank}: {size(device.peak_allocated_bytes)} at the peak"
    layers = frame[[name for name in CATEGORIES if frame[name].any()]]
    top = int(layers.sum(axis=1).max()) if len(layers) else 0
    up = [(value / top, label) for value, label in byte_marks(top)] if top else []
    axes = Axes(up, *_memory_labels(starts, frame["entry"], device.oom))
    yield _stacked_chart(title, layers, {name: css_category(name) for name in CATEGORIES}, axes)


def last_steps(starts: Sequence[StepStart], device: Device) -> tuple[int, int] | None:
    """Return the trace entries of the step in which an allocation failed and the one before it, to compare it with.

    Return None if none failed, or if no earlier steps were recorded.
    """
    before = [int(entry) for _, entry in starts if device.oom and entry <= device.oom.index]
    return (before[-_STEPS_SHOWN], device.entries) if len(before) > _STEPS_SHOWN else None


def _step_starts(artefact: Artefact, device: int, run: Run) -> list[StepStart]:
    logs = run.of(*TIMED)
    logged = step_views.clock(logs, rank=artefact.rank) if logs else None
    return StepMarks.of(memory_views.clock(artefact, device=device, logged=logged)).starts()


def _memory_labels(
    starts: Sequence[StepStart], entries: "pd.Series[int]", failed: Oom | None
) -> tuple[list[Tick], Tick | None]:
    """Return the labels of steps below a chart whose columns end at these trace entries, and that of the failure.

    Each is at a share of the width.
    """
    at = entries.to_numpy()
    # The first column ends some entries after the start of the range.
    within = [(step, entry) for step, entry in starts if at[0] - _LABEL * (at[-1] - at[0]) <= entry <= at[-1]]
    shares = [int(np.searchsorted(at, entry)) / len(at) for _, entry in within]
    names = [f"step {step}" if i == 0 else str(step) for i, (step, _) in enumerate(within)]
    labels = apart([*zip(shares, names, strict=True)], _LABEL)
    if failed is None:
        return labels, None
    share = (int(np.searchsorted(at, failed.index)) + 0.5) / len(at)
    step = [step for step, entry in starts if entry <= failed.index][-1:]
    name = f"✗ step {step[0]}" if step else "✗ failed"
    return [label for label in labels if share - label[0] >= _LABEL], (share, name)


def _file_behind(path: str, report: Report[object], run: Run) -> Artefact | None:
    """Return the file of the run that the report lists as `path`; None if it does not exist.

    In an anonymised report `path` is a replacement, so the file is identified by its kind, rank, step and size.
    """
    named = next((file for file in report.inputs if file.path == path), None)
    # Rank, step and size together identify a file of a run, whatever its name.
    facts = named and (named.kind, named.rank, named.step, named.bytes)
    same = [file for file in run.artefacts if (str(file.kind), file.rank, file.step, file.bytes) == facts]
    return next((file for file in same if str(file.path) == path), same[0] if same else None)


def phase_chart(data: StepsData, report: Report[object], run: Run) -> Iterator[str]:
    """Yield the HTML figure of the time in each phase of each step, for a single rank.

    It is the first rank of the verdict that has a step log, else the first rank of the report.
    """
    logs = run.of(*TIMED)
    if not logs:
        return
    ranks = [rank.rank for rank in data.ranks]
    rank = next((rank for rank in report.verdict.ranks if rank in ranks), ranks[0])
    phases = step_views.phases(logs, rank=rank).tail(_STEPS_AT_MOST)
    longest = phases.sum().nlargest(PHASES).index
    shown = _one_of_each_colour(phases[sorted(longest, key=lambda name: name in step_views.NOT_TRAINING)])
    if not shown.to_numpy().any():
        return
    title = f"Phases of each step, rank {rank}: the longest step takes {duration(float(phases.sum(axis=1).max()))}"
    colours = {phase_title(name): css_phase(name) for name in shown.columns}
    hatched = {phase_title(name): angle for name, angle in zip(step_views.NOT_TRAINING, _ANGLES, strict=False)}
    top_ns = float(shown.sum(axis=1).max()) * 1e9
    up = [(value / top_ns, label) for value, label in duration_marks(top_ns, LEVELS)]
    steps = [int(step) for step in shown.index.get_level_values("step")]
    axes = Axes(up, step_labels(steps))
    yield _stacked_chart(title, shown.rename(columns=phase_title), colours, axes, hatched)


def _one_of_each_colour(phases: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of `phases`, which begin with the longest, without those whose colour an earlier one has.

    The legend would have two names for a colour; with more phases than colours, the shortest ones are left out.
    """
    first = {name: css_phase(str(name)) for name in phases if name not in step_views.NOT_TRAINING}
    # Reversed, so that the longest phase of a colour is the last to set its name.
    names = {colour: name for name, colour in reversed(first.items())}
    return phases[[name for name in phases if name not in first or names[first[name]] == name]]


def step_labels(steps: Sequence[int]) -> list[Tick]:
    """Return the labels of bars, one for each of these steps: at round numbers, below the middle of a bar."""
    every = max(1, round(tick_distance(steps[-1] - steps[0], _STEP_LABELS)))
    at = [(i, step) for i, step in enumerate(steps) if step % every == 0] or [(0, steps[0])]
    labels = [f"step {step}" if i == at[0][0] else str(step) for i, step in at]
    return apart([((i + 0.5) / len(steps), label) for (i, _), label in zip(at, labels, strict=True)], _LABEL)


def _stacked_chart(
    title: str, layers: pd.DataFrame, colours: Mapping[str, str], axes: Axes, hatched: Mapping[str, int] | None = None
) -> str:
    """Return an HTML figure of a stacked chart; `layers` has a column per band and a row per x position.

    `hatched` has the angle of the hatching of those bands whose colour others have, too.
    """
    angles = {name: angle for name, angle in (hatched or {}).items() if name in layers}
    names = [str(name) for name in layers]
    above = layers.to_numpy(float).cumsum(axis=1)
    # Layers without a byte must not divide by zero.
    scale = HEIGHT / max(float(above.max(initial=0.0)), 1e-12)
    below = np.hstack([np.zeros((len(above), 1)), above[:, :-1]])
    fills = {name: f"url(#hatch-{angles[name]})" if name in angles else colours[name] for name in names}
    bands = [
        f'<path d="{outline((below[:, i] * scale).tolist(), (above[:, i] * scale).tolist())}" fill="{fills[name]}"/>'
        for i, name in enumerate(names)
    ]
    patterns = [_hatching(angle, colours[name]) for name, angle in angles.items()]
    keys = {name: _striped(angles[name], colours[name]) if name in angles else colours[name] for name in names}
    return figure(title, "".join([*patterns, *bands]), keys, axes)


def _hatching(angle: int, colour: str) -> str:
    return (
        f'<pattern id="hatch-{angle}" width="6" height="6" patternUnits="userSpaceOnUse"'
        f' patternTransform="rotate({angle})"><rect width="2" height="6" fill="{colour}"/></pattern>'
    )


def _striped(angle: int, colour: str) -> str:
    return f"repeating-linear-gradient({angle + 90}deg, {colour} 0 2px, transparent 2px 5px)"


def outline(low: Sequence[float], high: Sequence[float]) -> str:
    """Return the SVG path that outlines one band of a stacked chart."""
    wide = WIDTH / len(high)
    there = [f"{i * wide:.1f} {HEIGHT - y:.1f}H{(i + 1) * wide:.1f}" for i, y in enumerate(high)]
    back = [f"{(i + 1) * wide:.1f} {HEIGHT - y:.1f}H{i * wide:.1f}" for i, y in reversed(list(enumerate(low)))]
    return f"M{'L'.join([*there, *back])}Z"


_LEARNED = {ROLE_NAMES[role] for role in (Role.ANSWER, Role.END)}
_GIVEN = {ROLE_NAMES[role] for role in (Role.USER, Role.SYSTEM, Role.TOOL, Role.PADDING, Role.OPENER, Role.TEMPLATE)}
_TRAINED, _IGNORED, _AGAINST = "trained", "ignored", "against its role"
_HUES = {_TRAINED: "green", _IGNORED: "soft", _AGAINST: "error"}
_BORDER = "\u2503"
"""The sign before the first token of a packed document."""
SHOWN = 4096
_LINE_ENDS = str.maketrans({"\n": "\u23ce\n", "\t": "\u21e5", "\r": "\u240d"})


def state(position: Position) -> str:
    """Return the state of a token: trained, ignored, or the opposite of what is usual for its role (`_AGAINST`)."""
    if (position.trained and position.role in _GIVEN) or (not position.trained and position.role in _LEARNED):
        return _AGAINST
    return _TRAINED if position.trained else _IGNORED


def sequences(data: TokensData) -> Iterator[tuple[int, list[Position]]]:
    rows = data.rows if data.statistics else []
    for number, tokens in groupby(rows[:SHOWN], key=lambda row: row.sequence):
        yield number, list(tokens)


def _begins_document(tokens: list[Position], i: int) -> bool:
    return i > 0 and tokens[i].document != tokens[i - 1].document


def coloured_tokens(data: TokensData) -> "Text":
    from rich.text import Text

    result = Text()
    for number, tokens in sequences(data):
        result.append(f"\nRow {number}  ", "bold")
        for name in _HUES:
            result.append(f"{name}", _style_of(name)).append("  ")
        result.append("\n")
        for i, token in enumerate(tokens):
            result.append(_BORDER if _begins_document(tokens, i) else "")
            result.append(clean(token.text.translate(_LINE_ENDS)), _style_of(state(token)))
        result.append("\n")
    return result


def _style_of(name: str) -> str:
    extra = {_TRAINED: "bold", _IGNORED: "dim", _AGAINST: "reverse"}[name]
    return f"{extra} {DARK.hues[_HUES[name]]}"


def token_figures(data: TokensData, _report: Report[object], _run: Run) -> Iterator[str]:
    for number, tokens in sequences(data):
        body = "".join(_token_html(token, _begins_document(tokens, i)) for i, token in enumerate(tokens))
        legend = "".join(f'<span style="{css(name)}">{name}</span>' for name in _HUES)
        yield (
            f"<figure><figcaption>Row {number}, token by token</figcaption>"
            f'<p style="white-space: pre-wrap; overflow-wrap: anywhere">{body}</p><p class="keys">{legend}</p></figure>'
        )


def _token_html(token: Position, is_first: bool) -> str:
    """Return one token as HTML; before the first token of a packed document comes the sign of a border."""
    label = "no label" if not token.trained and token.label < 0 else f"label {token.label}"
    about = text(f"{token.position}: token {token.token}, {token.role}, {label}")
    shown = text(token.text.translate(_LINE_ENDS))
    return f'{_BORDER if is_first else ""}<span title="{about}" style="{css(state(token))}">{shown}</span>'


def css(name: str) -> str:
    extra = {_TRAINED: "font-weight: 600", _IGNORED: "opacity: .8", _AGAINST: "text-decoration: underline wavy"}[name]
    return f"color: var(--{_HUES[name]}); {extra}"
