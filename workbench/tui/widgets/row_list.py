"""A list of any length at the price of the lines on screen."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.binding import BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from workbench.tui.widgets.key_bindings import SCROLLED


class Rows(ScrollView, can_focus=True):
    """Items under a head that stays; only those in sight are made into text."""

    DEFAULT_CSS = "Rows { height: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = SCROLLED

    def __init__(self, head: Text, line: Callable[[Any], Text], **options: Any) -> None:
        super().__init__(**options)
        self._head, self._line_of = head, line
        self._items: Sequence[Any] = ()

    def show(self, items: Sequence[Any]) -> None:
        """Show other items, from where one was."""
        self._items = items
        self.virtual_size = Size(self._head.cell_len, len(items) + 1)
        self.refresh()

    @property
    def row_count(self) -> int:
        """How many items there are."""
        return len(self._items)

    def render_line(self, y: int) -> Strip:
        left, top = self.scroll_offset
        place = top + y - 1
        text = self._head if y == 0 else self._line_of(self._items[place]) if place < len(self._items) else Text("")
        strip = Strip(text.render(self.app.console))
        return strip.crop_extend(left, left + self.size.width, None).apply_style(self.rich_style)
