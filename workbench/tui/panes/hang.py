"""Who waits for whom: the matrix of ranks and collectives, the culprits, the operations around the divergence."""

from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Static

from analyzers.errors import WorkbenchError
from analyzers.hangs import views
from analyzers.run import Run
from analyzers.store import Options
from analyzers.wording import ranges
from workbench.console import clean
from workbench.present.sections import hang
from workbench.tui.widgets.matrix import Matrix, legend
from workbench.tui.widgets.tables import Sections

COLLECTIVES = 60


class HangPane(Vertical):
    """`g` goes to the next process group."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("g", "group(1)", "Next group", id="hang.group")]

    def __init__(self, data: Any, run: Run, options: Options) -> None:
        super().__init__()
        self._data, self._run, self._options = data, run, options
        self._at = self._first_group()

    def _first_group(self) -> int:
        """The group that the first culprit broke."""
        names = [group.name for group in self._data.groups]
        broken = [names.index(c.group) for c in self._data.culprits if c.group in names]
        return broken[0] if broken else 0

    def compose(self) -> ComposeResult:
        yield Static(id="hang-title")
        yield Matrix(id="matrix")
        yield Static(legend(), id="legend")
        yield Sections(hang(self._data)[:2])

    def on_mount(self) -> None:
        self._load()

    def action_group(self, by: int) -> None:
        if self._data.groups:
            self._at = (self._at + by) % len(self._data.groups)
            self._load()

    @work(thread=True, exclusive=True, group="matrix")
    def _load(self) -> None:
        if not self._data.groups:
            return
        group = self._data.groups[self._at]
        try:
            frame = views.matrix(self._run, group.name, COLLECTIVES, self._options)
        except WorkbenchError as error:
            self.app.call_from_thread(self.notify, error.message, severity="error", markup=False)
            return
        place = f"{self._at + 1} of {len(self._data.groups)}"
        title = f"group {clean(group.name)} ({clean(group.desc)}), ranks {ranges(group.ranks)}   {place}"
        self.app.call_from_thread(self.query_one("#hang-title", Static).update, Text(title, style="bold"))
        self.app.call_from_thread(self.query_one(Matrix).show, frame)
