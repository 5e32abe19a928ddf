"""A line with the names of the views of a `ViewSwitcher`; a click on a name shows that view."""

from collections.abc import Mapping

from rich.style import Style
from rich.text import Text
from textual.geometry import Size
from textual.message import Message
from textual.widget import Widget

NAMES = {
    "artefacts": "files",
    "chain": "culprits",
    "entries": "events",
    "first": "difference",
    "held": "memory",
    "life": "history",
    "places": "pools",
    "standing": "positions",
}
"""{id of a view: its displayed name}, for views whose id is not the word that a user looks for."""


_GAP = "   "
_FEWEST_LINES = 16
"""The screen height, in lines, below which only the current view is named, so that lines remain for the view itself."""


class ViewStrip(Widget):
    """A line with the names of all views, then the title of the current view, whose name is highlighted.

    On a narrow screen, the title has a line of its own. A very low screen shows only the name and title of the current
    view.
    """

    DEFAULT_CSS = "ViewStrip { height: auto; max-height: 3; }"

    class Chosen(Message):
        """Message: the user has clicked on the name of the view with the id `view`."""

        def __init__(self, view: str) -> None:
            super().__init__()
            self.view = view

    def __init__(self) -> None:
        super().__init__()
        self._names, self._current, self._title = Text(), Text(), ""

    def show(self, titles: Mapping[str, str], view: str, title: str) -> None:
        """Show the names of all views in `titles`, and the title of `view`, the current one."""
        self._current = _name_of(view, shown=True)
        self._names, self._title = Text("  ").join(_name_of(one, shown=one == view) for one in titles), title
        self.refresh(layout=True)

    def render(self) -> Text:
        return self._lines(self.size.width)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002  # as in Textual
        # The width to come: what was drawn for an earlier width may have another number of lines.
        return len(self._lines(width).wrap(self.app.console, max(1, width)))

    def _lines(self, width: int) -> Text:
        if self.app.size.height < _FEWEST_LINES:
            line = Text.assemble(self._current, _GAP, (self._title, "dim"))
            line.truncate(width, overflow="ellipsis")
            return line
        fits = self._names.cell_len + len(_GAP) + len(self._title) <= width
        return Text.assemble(self._names, _GAP if fits else "\n", (self._title, "dim"))

    def action_choose(self, view: str) -> None:
        self.post_message(self.Chosen(view))


def _name_of(view: str, *, shown: bool) -> Text:
    """Return the name of a view as text that can be clicked, highlighted if `shown` is set."""
    style = Style(bold=shown, reverse=shown) + Style.from_meta({"@click": f"choose({view!r})"})
    return Text(NAMES.get(view, view), style)
