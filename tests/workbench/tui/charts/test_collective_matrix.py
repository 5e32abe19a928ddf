"""The matrix of ranks and collectives in the terminal: each collective has one column, whatever the label of a row."""

import pandas as pd
from textual.app import App, ComposeResult

from workbench.tui.widgets.charts.collective_matrix import CollectiveMatrix, legend


class MatrixApp(App[None]):
    def compose(self) -> ComposeResult:
        yield CollectiveMatrix()


async def lines_of(index):
    frame = pd.DataFrame([["done", "missing"]] * len(index), index=index, columns=[7, 8])
    app = MatrixApp()
    async with app.run_test(size=(60, 10)) as pilot:
        matrix = app.query_one(CollectiveMatrix)
        matrix.show(frame)
        await pilot.pause()
        return [matrix.render_line(y).text for y in range(len(index) + 1)]


async def test_rows_of_many_ranks_keep_the_columns_aligned():
    head, *rows = await lines_of(["640-642, 644-647", "643", ", ".join(map(str, range(0, 100, 3)))])
    assert len({row.index("✗") for row in rows}) == 1
    assert head.index("#7") == rows[0].index("●")
    assert rows[0].startswith("640-642, 644-647 ")
    assert "…" in rows[2]


async def test_a_few_ranks_have_short_labels():
    _, row = await lines_of(["3"])
    assert row.index("✗") <= 13


def test_the_legend_names_the_states_that_occur():
    assert legend({"missing"}).plain == "✗ missing"
    assert "mismatch" in legend().plain
