"""A container that shows one of several views, below a line with their names."""

from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, TypeVar, Unpack

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.geometry import Size
from textual.message import Message
from textual.widget import Widget
from textual.widgets import ContentSwitcher
from textual.worker import get_current_worker

from analyzers.errors import WorkbenchError
from workbench.tui.widgets.common import WidgetOptions

Answer = TypeVar("Answer")


def ask_in_background(
    widget: Widget, group: str, question: Callable[[], Answer], show: Callable[[Answer], None]
) -> None:
    """Run `question` in a thread, and then call `show` with its result on the event loop.

    If a newer question of the same `group` was asked meanwhile, the result is dropped. `question` must not read the
    size or position of a widget: that may start a screen layout, which is not safe in a thread. So compute such values
    before.
    """
    app = widget.app

    def answer() -> None:
        worker = get_current_worker()
        try:
            found = question()
        except WorkbenchError as error:
            app.call_from_thread(widget.notify, error.message, severity="error", markup=False)
            return
        if not worker.is_cancelled:
            app.call_from_thread(show_if_present, found)

    def show_if_present(found: Answer) -> None:
        # An app that closes removes the children of a widget before the widget itself.
        if app.is_running and widget.is_attached:
            show(found)

    widget.run_worker(answer, thread=True, exclusive=True, group=group)


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
    style = Style(bold=shown, reverse=shown) + Style.from_meta({"@click": f"choose({view!r})"})
    return Text(NAMES.get(view, view), style)


VIEW_KEYS: list[BindingType] = [
    Binding("v", "turn(1)", "Next view", id="reading.next"),
    Binding("V", "turn(-1)", "Previous view", id="reading.back", show=False),
]

AnyWidget = TypeVar("AnyWidget", bound=Widget)
Drawing = Callable[[], None]
"""A function that draws the computed content of a view; it is called on the event loop."""


class ViewSwitcher(Vertical):
    """A container that shows one of several views; `titles` maps the id of each view's widget to its title.

    A subclass creates the widgets and computes their content. When the user switches to a view, the view gets the
    focus, except if `TAKES_KEYS` is False: then the widget above the view needs the keys.
    """

    TAKES_KEYS: ClassVar[bool] = True
    BINDINGS: ClassVar[list[BindingType]] = VIEW_KEYS
    DEFAULT_CSS = "ViewSwitcher { height: 1fr; } ViewSwitcher ContentSwitcher { height: 1fr; }"

    def __init__(self, titles: Mapping[str, str], **options: Unpack[WidgetOptions]) -> None:
        super().__init__(**options)
        self.titles = dict(titles)
        self._widgets: dict[str, Widget] = {}
        self.view = next(iter(titles))
        self.wide = 1
        """The width in columns when the content of the view was last computed."""

    def widgets(self) -> Iterable[Widget]:
        raise NotImplementedError

    def ask(self, view: str) -> Drawing | None:
        """Compute the content of a view, and return a function that draws it; None if there is nothing to draw.

        This method runs in a thread, which must not read a widget's size, because that may start a screen layout. The
        attribute `wide` has the width of the screen instead.
        """
        raise NotImplementedError

    def widget(self, view: str, kind: type[AnyWidget]) -> AnyWidget:
        widget = self._widgets[view]
        assert isinstance(widget, kind), f"{view} is a {type(widget).__name__}"
        return widget

    def title(self) -> str:
        return self.titles[self.view]

    @property
    def shown(self) -> Widget:
        return self._widgets[self.view]

    def compose(self) -> ComposeResult:
        yield ViewStrip()
        self._widgets = {str(widget.id): widget for widget in self.widgets()}
        with ContentSwitcher(initial=self.view):
            yield self.shown

    def on_mount(self) -> None:
        self.load()

    async def action_turn(self, by: int) -> None:
        """Show the view that is `by` positions after the current one in the list of views; the list is cyclic."""
        names = list(self.titles)
        await self.turn_to(names[(names.index(self.view) + by) % len(names)])

    async def on_view_strip_chosen(self, event: ViewStrip.Chosen) -> None:
        event.stop()
        await self.turn_to(event.view)

    async def turn_to(self, view: str) -> None:
        """Show a view, and create its widget if this is the first time; so a pane opens fast."""
        takes_keys = self.TAKES_KEYS or self.has_focus_within
        switcher = self.query_one(ContentSwitcher)
        self.view = view
        if not self.shown.is_attached:
            await switcher.mount(self.shown)
        switcher.current = view
        if takes_keys:
            focusable = (widget for widget in (self.shown, *self.shown.walk_children(Widget)) if widget.focusable)
            next(focusable, self.shown).focus()
        self.load()

    def load(self) -> None:
        view, self.wide = self.view, max(1, self.size.width)
        ask_in_background(self, "view", lambda: self.ask(view), self._draw)

    def _draw(self, drawing: Drawing | None) -> None:
        self.query_one(ViewStrip).show(self.titles, self.view, self.title())
        if drawing is not None:
            drawing()
