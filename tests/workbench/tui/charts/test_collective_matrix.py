"""The matrix of ranks and collectives in the terminal: each collective has one column, whatever the label of a row."""

import pandas as pd
from textual.app import App, ComposeResult

from workbench.tui.widgets.grids import CollectiveMatrix, matrix_legend


class MatrixApp(App[None]):
    def compose(self) -> ComposeResult:
        yield CollectiveMatrix()


async def lines_of(index, states=("done", "missing"), first=7):
    frame = pd.DataFrame([states] * len(index), index=index, columns=range(first, first + len(states)))
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


async def test_the_first_collective_that_a_rank_lacks_is_numbered():
    head, row = await lines_of(["3"], ["done"] * 9 + ["missing"] * 6, first=100)
    assert head.split() == ["rank", "#100", "#109", "#114"]
    assert head.index("#109") == row.index("✗")


def test_the_legend_names_the_states_that_occur():
    assert matrix_legend({"missing"}).plain == "✗ missing"
    assert "mismatch" in matrix_legend().plain
