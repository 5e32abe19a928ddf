"""A screen that shows a source file, scrolled to a line that an artefact of the run mentions."""

from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from workbench.console import clean
from workbench.tui.widgets.row_list import RowList


class SourceScreen(ModalScreen[None]):
    """A screen that shows a source file with one line highlighted."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,o", "dismiss", "Back", id="source.back")]
    DEFAULT_CSS = """
    SourceScreen { align: center middle; }
    SourceScreen RowList { width: 90%; height: 90%; border: round $foreground; padding: 0 1; background: $surface; }
    """

    def __init__(self, path: Path, line: int) -> None:
        super().__init__()
        self._path, self._line = path, line

    def compose(self) -> ComposeResult:
        yield RowList[tuple[int, str]](Text(f"{clean(self._path)}:{self._line}", style="bold"), self._line_text)

    def on_mount(self) -> None:
        lines = self._path.read_text(errors="replace").splitlines()
        rows = self.query_one(RowList)
        rows.show(list(enumerate(lines, 1)))
        rows.focus()
        # The list has no height before it is laid out.
        self.call_after_refresh(self._center)

    def _center(self) -> None:
        rows = self.query_one(RowList)
        rows.scroll_to(y=max(0, self._line - rows.size.height // 2), animate=False)

    def _line_text(self, item: tuple[int, str]) -> Text:
        number, text = item
        here = number == self._line
        return Text(f"{'▶' if here else ' '}{number:>5}  {clean(text.expandtabs(4))}", style="reverse" if here else "")
