"""A list of any length that draws only its visible lines."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, TypeVar, Unpack

from rich.text import Text
from textual.binding import BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from workbench.tui.widgets.key_bindings import SCROLL_KEYS
from workbench.tui.widgets.widget_options import WidgetOptions

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
        """Replace the items; the scroll position stays."""
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
        """The number of items."""
        return len(self._items)

    def render_line(self, y: int) -> Strip:
        left, top = self.scroll_offset
        number = top + y - 1
        text = self._head if y == 0 else self._line_of(self._items[number]) if number < len(self._items) else Text("")
        strip = Strip(text.render(self.app.console))
        # A strip has no background of its own: without the style, the terminal's would show instead of the theme's.
        return strip.crop_extend(left, left + self.size.width, None).apply_style(self.rich_style)
