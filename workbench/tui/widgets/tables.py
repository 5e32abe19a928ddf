"""The tables that every document shows, as they are."""

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import DataTable, Label

from workbench.console import clean
from workbench.present.sections import Table


class Sections(VerticalScroll):
    """Several small tables under each other."""

    def __init__(self, tables: list[Table]) -> None:
        super().__init__()
        self._tables = tables

    def compose(self) -> ComposeResult:
        for section in self._tables:
            yield Label(Text(clean(section.title), style="bold"))
            yield grid(section)


def grid(section: Table) -> DataTable[Text]:
    table: DataTable[Text] = DataTable(cursor_type="row", zebra_stripes=True)
    table.styles.height = min(len(section.rows) + 2, 16)
    table.add_columns(*(Text(head) for head in section.columns))
    for row in section.rows:
        justified = ((cell, "right" if i in section.numeric else "left") for i, cell in enumerate(row))
        table.add_row(*(Text(clean(cell), justify=side) for cell, side in justified))  # type: ignore[arg-type]  # the two sides are literals
    return table
