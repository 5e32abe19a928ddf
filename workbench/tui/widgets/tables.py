"""The tables that every document shows, as they are."""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import DataTable, Label

from workbench.console import clean
from workbench.present.table import Table
from workbench.tui.widgets.key_bindings import CURSOR, FOUND

ROWS_AT_MOST = 2000
"""More take seconds to lay out, and nobody scrolls that far: `--json` has them all."""


class Sections(VerticalScroll):
    """Several small tables under each other."""

    def __init__(self, tables: list[Table], **options: Any) -> None:
        super().__init__(**options)
        self._tables = tables

    def compose(self) -> ComposeResult:
        yield from titled(self._tables)


class Listed(Sections):
    """The same, of something else each time."""

    def __init__(self, **options: Any) -> None:
        super().__init__([], **options)

    def show(self, tables: list[Table]) -> None:
        """Draw these instead."""
        self._tables = tables
        self.refresh(recompose=True)


class Grid(DataTable[Text]):
    """A table whose rows can be changed, with a search."""

    BINDINGS: ClassVar[list[BindingType]] = [*CURSOR, *FOUND]

    def __init__(self, section: Table | None = None, **options: Any) -> None:
        super().__init__(cursor_type="row", zebra_stripes=True, **options)
        self._section = section
        self._text = ""

    def on_mount(self) -> None:
        if self._section is not None:
            self.show(self._section)

    def show(self, section: Table) -> None:
        """Draw other rows; the cursor goes to the first."""
        self._section = section
        self.clear(columns=True)
        rows = [[clean(cell) for cell in row] for row in section.rows[:ROWS_AT_MOST]]
        heads = [clean(head) for head in section.columns]
        # Measured here: what Textual measures later leaves lines that were drawn before as narrow as their heads.
        for head, *cells in zip(heads, *rows, strict=True):
            self.add_column(Text(head), width=max(map(cell_len, [head, *cells])))
        for row in rows:
            justified = ((cell, "right" if i in section.numeric else "left") for i, cell in enumerate(row))
            self.add_row(*(Text(cell, justify=side) for cell, side in justified))  # type: ignore[arg-type]  # the two sides are literals

    @property
    def lines(self) -> list[str]:
        """The rows as text, cells parted by tabs."""
        return ["\t".join(row) for row in self._section.rows[:ROWS_AT_MOST]] if self._section else []

    def chosen(self) -> str:
        """The row under the cursor."""
        return self.lines[self.cursor_row] if self.cursor_row < len(self.lines) else ""

    def search(self, text: str) -> None:
        """Go to the first row that holds the text; `n` and `N` go on from there."""
        self._text = text.casefold()
        self.action_found(1)

    def action_found(self, by: int) -> None:
        rows = [number for number, line in enumerate(self.lines) if self._text in line.casefold()]
        if not self._text or not rows:
            self.app.notify("nothing is called that", markup=False)
            return
        at = rows.index(self.cursor_row) + by if self.cursor_row in rows else 0
        self.move_cursor(row=rows[at % len(rows)])


def titled(tables: Iterable[Table]) -> Iterator[Widget]:
    """Each table below its title."""
    for section in tables:
        yield Label(Text(clean(section.title), style="bold"))
        yield grid(section)


def grid(section: Table) -> Grid:
    """A table as high as its rows need, at most 16 lines."""
    table = Grid(section)
    table.styles.height = min(len(section.rows) + 2, 16)
    return table
