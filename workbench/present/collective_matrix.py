"""The state of each collective on each rank: what all faces show of it, and the table of an HTML report."""

from collections.abc import Iterator, Sequence

import pandas as pd

from analyzers.hangs import views
from analyzers.hangs.model import Group, HangData
from analyzers.report import Report
from analyzers.run import Run
from analyzers.store import Options
from analyzers.words import ranks_label
from workbench.colours import COLLECTIVE_SIGNS, HUE_OF_STATE, css_state, css_state_text
from workbench.present.figure import text

_COLLECTIVES, _SINGLE_RANKS, _MOST_ROWS = 60, 32, 64
"""The most collectives, the most ranks with a row each, and, if there are more ranks, the most rows for all."""
FEW = 30
"""The most collectives side by side that leave room for a sign in each cell; with more, completed ones have none."""
_HALF = 0.5
_LABELS, _LABEL_REM = 12, 7.5
STYLE = """
/* Where there is no room, the last collectives, which hang, are in sight. */
.matrix .wide { direction: rtl; }
.matrix .wide table { direction: ltr; margin: 0 auto 0 0; table-layout: fixed; }
.matrix :is(th, td) { height: 1.3rem; padding: 0; border: 1px solid var(--page);
  font-size: 12px; line-height: 1.3rem; text-align: center; }
.matrix th { font-weight: 400; text-align: right; white-space: nowrap; }
.matrix th:first-child { position: sticky; left: 0; width: 7.5rem; padding-right: .6rem;
  white-space: normal; background: var(--page); }
.matrix i { width: 1.1rem; height: 1.1rem; font-style: normal; line-height: 1.1rem; text-align: center;
  outline: 1px solid var(--edge); }
""" + "".join(
    f".matrix .{hue} {{ background: {css_state(state)}; color: {css_state_text(state)}; }}\n"
    for state, hue in HUE_OF_STATE.items()
)
"""The CSS rules of the cells; the class of a cell is the hue of its state."""


def collective_states(data: HangData, _report: Report[object], run: Run) -> Iterator[str]:
    if not data.groups or not data.culprits:
        return
    group = group_in_view(data)
    frame = rank_states(run, group, _COLLECTIVES, _SINGLE_RANKS)
    if not frame.empty:
        yield matrix_figure(f"State of the last collectives of process group {group.label}, by rank", frame)


def matrix_figure(title: str, frame: pd.DataFrame) -> str:
    """Return the HTML figure of a table of states; `frame` has a row for each rank, or for ranks with equal rows.

    Rows of ranks in which something is not done come first if there are more rows than fit.
    """
    if len(frame) > _MOST_ROWS:
        # A stable sort keeps the ranks in order.
        frame = frame.iloc[(frame == "done").all(axis=1).argsort(kind="stable")]
    shown, left = frame.head(_MOST_ROWS), max(0, len(frame) - _MOST_ROWS)
    signs = COLLECTIVE_SIGNS if frame.shape[1] <= FEW else COLLECTIVE_SIGNS | {"done": ""}
    rows = "".join(
        f"<tr><th>{text(ranks_label(ranks))}</th>{''.join(cell(state, signs[state]) for state in states)}</tr>"
        for ranks, states in zip(shown.index, shown.to_numpy().tolist(), strict=True)
    )
    head = f"<tr><th>rank</th>{heading([*map(int, frame.columns)])}</tr>"
    states = [state for state in HUE_OF_STATE if (shown == state).to_numpy().any()]
    rest = f"<p>... and {left} more rows</p>" if left else ""
    return (
        f'<figure class="matrix"><figcaption>{text(title)}</figcaption><p class="keys">{"".join(map(key, states))}</p>'
        f'<div class="wide"><table style="{wide(frame.shape[1])}">{head}{rows}</table></div>{rest}</figure>'
    )


def wide(columns: int) -> str:
    least, most = (f"calc({_LABEL_REM}rem + {columns * cell_rem}rem)" for cell_rem in (1, 3))
    return f"min-width: {least}; width: min(100%, {most})"


def cell(state: str, sign: str) -> str:
    return f'<td class="{HUE_OF_STATE[state]}" title="{state or "not recorded"}">{sign}</td>'


def key(state: str) -> str:
    box = f'<i class="{HUE_OF_STATE[state]}">{COLLECTIVE_SIGNS[state]}</i>'
    return f"<span>{box}{state or 'not recorded'}</span>"


def heading(numbers: Sequence[int]) -> str:
    """Return the cells above the columns: each names the last of as many columns as its label needs."""
    every = -(-len(numbers) // _LABELS)
    # The odd columns are at the left, so that the last column, in which ranks hang, has a label.
    first = len(numbers) % every or every
    ends = range(first, len(numbers) + 1, every)
    return "".join(f'<th colspan="{every if end > first else first}">#{numbers[end - 1]}</th>' for end in ends)


def group_in_view(data: HangData, wanted: str | None = None) -> Group:
    name = wanted or (data.culprits[0].group if data.culprits else None)
    return next((group for group in data.groups if group.name == name), data.groups[0])


def rank_states(
    run: Run, group: Group, collectives: int, single_ranks: int, options: Options | None = None
) -> pd.DataFrame:
    """Return the states of the last `collectives` collectives of a process group, with a row per rank.

    The table is that of `hangs.views.matrix`; if there are more than `single_ranks` ranks, those with equal rows share
    one.
    """
    frame = from_most_ranks(views.matrix(run, group.name, collectives, options))
    # Thousands of rows would take a browser seconds, and nearly all of them are equal.
    return frame if len(frame) <= single_ranks else views.folded(frame)


def from_most_ranks(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the states without the first collectives, of which fewer than half of the ranks have a record.

    A rank that stopped early still has in its ring buffer what the others have overwritten.
    """
    known = (frame != "").mean() >= _HALF
    return frame.loc[:, known.idxmax() :] if known.any() else frame
