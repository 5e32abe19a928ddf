"""Widgets for the tables of a report: a single searchable table, or several tables one below the other."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Generic, Literal, TypeVar, Unpack

from rich.cells import cell_len
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import DataTable, Label, Static

from analyzers.words import shortened, without_middle
from workbench.console import clean
from workbench.present.table import Table, without_empty
from workbench.tui.widgets.common import CURSOR_KEYS, SCROLL_KEYS, SEARCH_KEYS, WidgetOptions, call_on_new_size

_HIGHEST_LINES, _OTHER_LINES = 16, 22
"""The most lines of a table among others on a small screen, and the lines that it leaves to others on a taller one."""
_COLUMN_GAP = 2
"""The width between two tables side by side, as in the style sheet of `TableList`."""
_CELL_PADDING = 1
ROWS_AT_MOST = 2000
"""The most rows that a table shows: more take seconds to lay out, and `--json` prints all data."""
LISTED = 200
"""The most rows of a table among others, whose title then says how many there are."""
NAMES = ("name", "measure", "module", "source line", "source lines", "operation", "ranks", "setting", "value", "mostly")
"""The headings of columns that become narrower if the table is wider than the screen.

Columns with other headings have to be scrolled to.
"""
_SENTENCES = ("event",)
"""The headings of columns of sentences, which wrap to several lines if the table is wider than the screen."""
_SHORTEST_NAME, _LONG_NAME = 16, 32
SOURCE_LINE = re.compile(r"[^/\s,]+:\d+\b")
"""Matches the file name and the line of a source line, such as `model.py:61`."""


class TableList(VerticalScroll):
    """Several small tables, one below the other, or in two columns if the screen is wide enough.

    If there is no table, the text `absent` says why.
    """

    DEFAULT_CSS = """
    TableList.two-columns { layout: grid; grid-size: 2; grid-gutter: 0 2; grid-rows: auto; }
    TitledTable { height: auto; }
    TitledTable.wide { column-span: 2; }
    """

    def __init__(self, tables: list[Table], absent: str = "", **options: Unpack[WidgetOptions]) -> None:
        super().__init__(**options)
        self._tables, self._absent = tables, absent

    def compose(self) -> ComposeResult:
        if not self._tables and self._absent:
            yield Static(Text(clean(self._absent)), classes="absent")
        for content in self._tables:
            yield TitledTable(content, classes="" if self._fits_beside(content) else "wide")

    def on_mount(self) -> None:
        call_on_new_size(self, self._arrange)

    def _fits_beside(self, content: Table) -> bool:
        return _natural_width(content) <= (self.size.width - _COLUMN_GAP) // 2

    def _arrange(self) -> None:
        self.set_class(sum(map(self._fits_beside, self._tables)) > 1, "two-columns")
        for titled_table in self.query(TitledTable):
            titled_table.set_class(not self._fits_beside(titled_table.content), "wide")


class TitledTable(Vertical):
    """A table below its title, as high as its rows but at most as `highest_lines`."""

    def __init__(self, content: Table, **options: Unpack[WidgetOptions]) -> None:
        super().__init__(**options)
        self.content = content

    def compose(self) -> ComposeResult:
        yield from titled([self.content], highest_lines(self.app.size.height))


def _natural_width(content: Table) -> int:
    content = without_empty(content)
    columns = zip(content.columns, *content.rows, strict=True)
    return sum(max(map(cell_len, cells)) + 2 * _CELL_PADDING for cells in columns)


class ChangingTableList(TableList):
    def __init__(self, **options: Unpack[WidgetOptions]) -> None:
        super().__init__([], **options)

    def show(self, tables: list[Table]) -> None:
        self._tables = tables
        self._arrange()
        self.refresh(recompose=True)


class Grid(DataTable[Text]):
    BINDINGS: ClassVar[list[BindingType]] = [*CURSOR_KEYS, *SEARCH_KEYS]

    def __init__(self, content: Table | None = None, **options: Unpack[WidgetOptions]) -> None:
        super().__init__(cursor_type="row", zebra_stripes=True, **options)
        self._content = content
        self._text = ""
        self._whole: dict[str, int] = {}
        self._widths: list[int] = []

    def on_mount(self) -> None:
        if self._content is not None:
            self.show(self._content)

    def show(self, content: Table) -> None:
        """Show the table `content` without its empty columns; the cursor goes to the first row."""
        content = self._content = with_rows(without_empty(content), ROWS_AT_MOST)
        self.clear(columns=True)
        rows = [[clean(cell) for cell in row] for row in content.rows]
        heads = [clean(head) for head in content.columns]
        # Widths are given: Textual measures cells later, and leaves lines that it has drawn as narrow as their heads.
        whole = [max(map(cell_len, cells)) for cells in zip(heads, *rows, strict=True)]
        self._widths = _fitted_widths(heads, whole, self._room(len(rows)))
        sides: list[Literal["right", "left"]] = ["right" if i in content.numeric else "left" for i in range(len(heads))]
        for head, width, side in zip(heads, self._widths, sides, strict=True):
            self.add_column(Text(head, justify=side), width=width)
        wraps = [head in _SENTENCES for head in heads]
        for row in rows:
            cells = (
                cell if wrap else _shortened_name(cell, width)
                for cell, width, wrap in zip(row, self._widths, wraps, strict=True)
            )
            texts = (Text(cell, justify=side) for cell, side in zip(cells, sides, strict=True))
            self.add_row(*texts, height=None if any(wraps) else 1)
        self._whole = dict(zip(heads, whole, strict=True))

    def _room(self, rows: int) -> int:
        bar = self.styles.scrollbar_size_vertical if rows + 1 > self.outer_size.height else 0
        padding = 2 * self.cell_padding * len(self._content.columns) if self._content else 0
        return self.outer_size.width - bar - padding

    def on_resize(self) -> None:
        if self._content is None:
            return
        room = self._room(len(self._content.rows))
        if _fitted_widths(list(self._whole), list(self._whole.values()), room) != self._widths:
            row = self.cursor_row
            self.show(self._content)
            self.move_cursor(row=row)

    @property
    def lines(self) -> list[str]:
        """The rows as text; tabs separate the cells."""
        return ["\t".join(row) for row in self._content.rows] if self._content else []

    def text_at_cursor(self) -> str:
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


def _fitted_widths(heads: Sequence[str], widths: Sequence[int], room: int) -> list[int]:
    """Return widths of columns with which the table fits into `room`; only columns of names become narrower.

    `widths` are the widths at which no cell is cut. The widest column of names is narrowed first, at most down to
    `_SHORTEST_NAME`. If the table cannot fit even then, names keep `_LONG_NAME` characters, and the table scrolls.
    """
    fitted, names = list(widths), [i for i, head in enumerate(heads) if head in (*NAMES, *_SENTENCES)]
    least = sum(min(width, _SHORTEST_NAME) if i in names else width for i, width in enumerate(widths))
    shortest = _SHORTEST_NAME if least <= room else _LONG_NAME
    while names and sum(fitted) > room > 0:
        widest = max(names, key=fitted.__getitem__)
        if fitted[widest] <= shortest:
            break
        fitted[widest] -= 1
    return fitted


def _shortened_name(text: str, width: int) -> str:
    """Return a name cut to `width` characters; of a source position, file, line and function are kept.

    Of two positions, such as a line and its caller, the end of the second is kept as well: it may be all that differs.

    >>> _shortened_name("trainer/models/llama3/model.py:61 forward", 24)
    '…ma3/model.py:61 forward'
    >>> _shortened_name("model.py:105 forward, from job/blocks.py:512", 30)
    'model.py:105 forwar…cks.py:512'
    """
    if cell_len(text) <= width:
        return text
    if (line := SOURCE_LINE.search(text)) is None:
        return without_middle(text, width)
    before, rest = text[: line.start()], text[line.start() :]
    kept = before[len(before) - max(0, width - len(rest) - 1) :] if before else ""
    if SOURCE_LINE.search(rest, line.end() - line.start()):
        return without_middle(rest, width)
    return shortened(f"…{kept}{rest}" if before and len(rest) < width else rest, width)


def with_rows(content: Table, limit: int) -> Table:
    """Return a table with at most `limit` of all its rows, also those that documents have no space for.

    If some are left out, the title says how many rows there are.
    """
    total, rows = len(content.rows) + content.left_out, (*content.rows, *content.more)[:limit]
    title = content.title if len(rows) == total else f"{content.title} ({len(rows)} of {total})"
    return replace(content, title=title, rows=rows, more=(), left_out=total - len(rows))


def highest_lines(screen: int) -> int:
    return max(_HIGHEST_LINES, screen - _OTHER_LINES)


def titled(tables: Iterable[Table], at_most: int = _HIGHEST_LINES) -> Iterator[Widget]:
    for content in (with_rows(table, LISTED) for table in tables):
        yield Label(Text(clean(content.title), style="bold"))
        yield _short_grid(content, at_most)


def _short_grid(content: Table, at_most: int) -> Grid:
    """Return a widget for a table, as high as its rows but at most `at_most` lines."""
    table = Grid(content)
    if any(head in _SENTENCES for head in content.columns):
        # How many lines they take depends on the width of the screen.
        table.styles.height, table.styles.max_height = "auto", at_most
    else:
        table.styles.height = min(len(content.rows) + 2, at_most)
    return table


Item = TypeVar("Item")


class RowList(ScrollView, Generic[Item], can_focus=True):
    """A scrolling list below a fixed heading `head`.

    `line` returns the text of an item, and is called only for visible items.
    """

    DEFAULT_CSS = "RowList { height: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = SCROLL_KEYS

    def __init__(self, head: Text, line: Callable[[Item], Text], **options: Unpack[WidgetOptions]) -> None:
        super().__init__(**options)
        self._head, self._line_of = head, line
        self._items: Sequence[Item] = ()

    def show(self, items: Sequence[Item]) -> None:
        self._items = items
        self.virtual_size = Size(self._head.cell_len, len(items) + 1)
        self.refresh()

    def bring_into_view(self, number: int) -> None:
        """Scroll just far enough that the item at index `number` is visible."""
        lines = max(1, self.size.height - 1)
        top = min(max(self.scroll_offset.y, number - lines + 1), number)
        self.scroll_to(y=top, animate=False, immediate=True)
        self.refresh()

    @property
    def row_count(self) -> int:
        return len(self._items)

    def render_line(self, y: int) -> Strip:
        left, top = self.scroll_offset
        number = top + y - 1
        text = self._head if y == 0 else self._line_of(self._items[number]) if number < len(self._items) else Text("")
        strip = Strip(text.render(self.app.console))
        # A strip has no background of its own: without the style, the terminal's would show instead of the theme's.
        return strip.crop_extend(left, left + self.size.width, None).apply_style(self.rich_style)
