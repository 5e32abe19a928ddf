"""The pane for text logs: a list of events, and below it the log lines around the selected event."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import DataTable, Static

from analyzers.logs import LogsData, views
from analyzers.report import Report
from workbench.console import clean
from workbench.present.table import CUT
from workbench.present.tables.run import event_table, first_to_show, shown_events
from workbench.rooms import EvidenceLink
from workbench.tui.subject import Subject
from workbench.tui.widgets.tables import Grid

_EVENTS_AT_MOST = 2000
_OWN_LINE = "bold reverse"


class LogsPane(Vertical):
    """The events of the text logs, and the log lines around the selected event; `[` and `]` select another event."""

    DEFAULT_CSS = (
        "LogsPane #log-events { height: auto; max-height: 50%; } LogsPane #log-excerpt-frame { height: 1fr; }"
        " LogsPane #log-title { height: 1; }"
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left_square_bracket", "move(-1)", "Previous event", id="logs.previous", show=False),
        Binding("right_square_bracket", "move(1)", "Next event", id="logs.next", show=False),
    ]

    def __init__(self, data: LogsData, _subject: Subject, report: Report[object]) -> None:
        super().__init__()
        self._data = data
        self._rows = shown_events(data)
        self._first = first_to_show(self._rows, report.findings, report.verdict.ranks)
        self._title = ""

    def compose(self) -> ComposeResult:
        yield Grid(event_table(self._data, _EVENTS_AT_MOST), id="log-events")
        yield Static(id="log-title")
        with VerticalScroll(id="log-excerpt-frame"):
            yield Static(id="log-excerpt")

    def on_mount(self) -> None:
        self._go_to(self._first)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        if event.data_table.id == "log-events" and event.cursor_row < len(self._rows):
            self._show(self._rows[event.cursor_row])

    def _show(self, row: views.EventRow) -> None:
        event = self._data.events[row.index]
        text, lines = Text(), views.excerpt(event)
        for line in lines:
            text.append(clean(line.text) + "\n", _OWN_LINE if line.is_event else "")
        self._title = f"{clean(event.path)}, around line {event.line}"
        self._show_title()
        self.query_one("#log-excerpt", Static).update(text)
        own = next((number for number, line in enumerate(lines) if line.is_event), 0)
        frame = self.query_one("#log-excerpt-frame", VerticalScroll)
        # The text gets its height when it is laid out.
        self.call_after_refresh(frame.scroll_to, y=max(0, own - frame.size.height // 2), animate=False)

    def on_resize(self) -> None:
        self._show_title()

    def _show_title(self) -> None:
        """Show the title, such as `train.log, around line 7`; if it is too long, only its end."""
        room = max(2, self.size.width - 1)
        title = self._title if len(self._title) <= room else CUT + self._title[1 - room :]
        self.query_one("#log-title", Static).update(Text(title, style="bold"))

    def _go_to(self, number: int) -> None:
        if self._rows:
            self.query_one("#log-events", Grid).move_cursor(row=min(number, len(self._rows) - 1))
            self._show(self._rows[min(number, len(self._rows) - 1)])

    def action_move(self, by: int) -> None:
        grid = self.query_one("#log-events", Grid)
        self._go_to(max(0, grid.cursor_row + by))

    async def show_evidence(self, link: EvidenceLink) -> None:
        """Move the cursor to the first event of the finding's rank."""
        numbers = (number for number, row in enumerate(self._rows) if row.rank == link.rank)
        self._go_to(next(numbers, self._first))
