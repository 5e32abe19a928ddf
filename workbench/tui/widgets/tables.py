"""Widgets for the tables of a report: a single searchable table, or several tables one below the other."""

from collections.abc import Iterable, Iterator
from typing import ClassVar, Unpack

from rich.cells import cell_len
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import DataTable, Label

from workbench.console import clean
from workbench.present.table import Table
from workbench.tui.widgets.key_bindings import CURSOR_KEYS, SEARCH_KEYS
from workbench.tui.widgets.widget_options import WidgetOptions

HIGHEST_LINES = 16
ROWS_AT_MOST = 2000
"""The most rows that a table shows: more take seconds to lay out, and `--json` prints all data."""


class TableList(VerticalScroll):
    """Several small tables, one below the other."""

    def __init__(self, tables: list[Table], **options: Unpack[WidgetOptions]) -> None:
        super().__init__(**options)
        self._tables = tables

    def compose(self) -> ComposeResult:
        yield from titled(self._tables)


class ChangingTableList(TableList):
    """Several small tables, one below the other, whose content can be replaced."""

    def __init__(self, **options: Unpack[WidgetOptions]) -> None:
        super().__init__([], **options)

    def show(self, tables: list[Table]) -> None:
        """Replace the tables."""
        self._tables = tables
        self.refresh(recompose=True)


class Grid(DataTable[Text]):
    """A searchable table whose content can be replaced."""

    BINDINGS: ClassVar[list[BindingType]] = [*CURSOR_KEYS, *SEARCH_KEYS]

    def __init__(self, content: Table | None = None, **options: Unpack[WidgetOptions]) -> None:
        super().__init__(cursor_type="row", zebra_stripes=True, **options)
        self._content = content
        self._text = ""

    def on_mount(self) -> None:
        if self._content is not None:
            self.show(self._content)

    def show(self, content: Table) -> None:
        """Show this table; the cursor goes to its first row."""
        self._content = content
        self.clear(columns=True)
        rows = [[clean(cell) for cell in row] for row in content.rows[:ROWS_AT_MOST]]
        heads = [clean(head) for head in content.columns]
        # Widths are given: Textual measures cells later, and leaves lines that it has drawn as narrow as their heads.
        for head, *cells in zip(heads, *rows, strict=True):
            self.add_column(Text(head), width=max(map(cell_len, [head, *cells])))
        for row in rows:
            justified = ((cell, "right" if i in content.numeric else "left") for i, cell in enumerate(row))
            self.add_row(*(Text(cell, justify=side) for cell, side in justified))  # type: ignore[arg-type]  # the two sides are literals

    @property
    def lines(self) -> list[str]:
        """The rows as text, with tabs between the cells."""
        return ["\t".join(row) for row in self._content.rows[:ROWS_AT_MOST]] if self._content else []

    def text_at_cursor(self) -> str:
        """Return the row under the cursor, with tabs between the cells."""
        return self.lines[self.cursor_row] if self.cursor_row < len(self.lines) else ""

    def search(self, text: str) -> None:
        """Move the cursor to the first row that contains the text; `n` and `N` find the next and previous rows."""
        self._text = text.casefold()
        self.action_next_match(1)

    def action_next_match(self, by: int) -> None:
        rows = [number for number, line in enumerate(self.lines) if self._text in line.casefold()]
        if not self._text or not rows:
            self.app.notify("no match", markup=False)
            return
        at = rows.index(self.cursor_row) + by if self.cursor_row in rows else 0
        self.move_cursor(row=rows[at % len(rows)])


def titled(tables: Iterable[Table]) -> Iterator[Widget]:
    """Yield two widgets for each table: its title and the table."""
    for content in tables:
        yield Label(Text(clean(content.title), style="bold"))
        yield short_grid(content)


def short_grid(content: Table) -> Grid:
    """Return a widget for a table, as high as its rows but at most `HIGHEST_LINES`."""
    table = Grid(content)
    table.styles.height = min(len(content.rows) + 2, HIGHEST_LINES)
    return table
