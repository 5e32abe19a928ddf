"""The bars of the traced ranks in the terminal app: which of many are shown, and what their legend names."""

from dataclasses import dataclass

from benchmarks import traced_job
from terminal import app_on, press, settle, shown
from workbench.tui.panes.trace import legend
from workbench.tui.widgets.tables import RowList

RANKS, LATE = 16, 13


@dataclass(frozen=True)
class Account:
    """The times of a rank, as the legend reads them."""

    compute_ns: int = 1
    exposed_communication_ns: int = 0
    exposed_memory_ns: int = 0
    idle_ns: int = 0


async def test_the_bar_of_the_culprit_is_shown_among_many(tmp_path):
    """Its rank is selected below; the bars of the first ranks say nothing about it."""
    parts = traced_job.llama(layers=1, shards=8)
    fault = traced_job.Fault(LATE, factor=1.5)
    traced_job.job(tmp_path / "profile_traces" / "iteration_10", RANKS, 2, parts, faults=[fault])
    app = app_on(tmp_path)
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(app, pilot)
        await press(app, pilot, "4")
        assert f"({LATE + 1} of {RANKS})" in shown(app)
        assert bars_of(app)[-1] == LATE
        await press(app, pilot, "right_square_bracket")
        assert bars_of(app)[-1] == LATE + 1
        await press(app, pilot, *["left_square_bracket"] * (LATE + 1))
        assert bars_of(app)[0] == 0


def bars_of(app):
    """Return the ranks whose bars are shown."""
    bars = app.query_one("#bars", RowList)
    return [int(bars.render_line(y).text.split()[0]) for y in range(1, bars.size.height)]


def test_the_legend_names_the_parts_that_occur():
    assert legend([Account(), Account(idle_ns=2)]).plain.split() == ["c", "compute", "idle"]
