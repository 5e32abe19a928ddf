"""Several readings of one thing, of which one is in sight."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import ContentSwitcher, Static

from workbench.tui.background import ask_aside

TURNS: list[BindingType] = [
    Binding("v", "reading(1)", "Next reading", id="reading.next"),
    Binding("V", "reading(-1)", "Previous reading", id="reading.back", show=False),
]


class Readings(Vertical):
    """`titles`: what each reading shows, by the id of its widget. A subclass says what to ask for each, off the event
    loop; the widget's own `show` takes the answer.

    A reading that one turns to gets the keys, unless what is above it needs them more (`TAKES_KEYS`).
    """

    TAKES_KEYS: ClassVar[bool] = True
    BINDINGS: ClassVar[list[BindingType]] = TURNS
    DEFAULT_CSS = "Readings { height: 1fr; } Readings ContentSwitcher { height: 1fr; } Readings > Static { height: 1; }"

    def __init__(self, titles: Mapping[str, str], **options: Any) -> None:
        super().__init__(**options)
        self.titles = dict(titles)
        self._widgets: dict[str, Widget] = {}
        self.reading = next(iter(titles))
        self.wide = 1
        """Columns there were when the reading in sight was asked for."""

    def widgets(self) -> Iterable[Widget]:
        """The widget of each reading."""
        raise NotImplementedError

    def ask(self, reading: str) -> tuple[Any, ...] | None:
        """What the widget's `show` takes; None where it needs nothing more. Runs in a thread, so look at `wide`."""
        raise NotImplementedError

    def title(self) -> str:
        """What is in sight."""
        return self.titles[self.reading]

    @property
    def shown(self) -> Widget:
        """The widget in sight."""
        return self._widgets[self.reading]

    def compose(self) -> ComposeResult:
        yield Static(classes="title")
        self._widgets = {str(widget.id): widget for widget in self.widgets()}
        with ContentSwitcher(initial=self.reading):
            yield self.shown

    def on_mount(self) -> None:
        self.load()

    async def action_reading(self, by: int) -> None:
        """Show the next reading, or the one before."""
        names = list(self.titles)
        await self.turn_to(names[(names.index(self.reading) + by) % len(names)])

    async def turn_to(self, reading: str) -> None:
        """Show a reading. Its widget is mounted when it is first wanted."""
        takes_keys = self.TAKES_KEYS or self.has_focus_within
        switcher = self.query_one(ContentSwitcher)
        self.reading = reading
        if not self.shown.is_attached:
            await switcher.mount(self.shown)
        switcher.current = reading
        if takes_keys:
            able = (widget for widget in (self.shown, *self.shown.walk_children(Widget)) if widget.focusable)
            next(able, self.shown).focus()
        self.load()

    def load(self) -> None:
        """Ask for what the reading in sight shows."""
        reading, self.wide = self.reading, max(1, self.size.width)
        ask_aside(self, "reading", lambda: self.ask(reading), lambda found: self._show(reading, found))

    def _show(self, reading: str, found: tuple[Any, ...] | None) -> None:
        place = f"{list(self.titles).index(reading) + 1}/{len(self.titles)}"
        told = Text.assemble((f"{place} ", "dim"), (self.title(), "bold"))
        self.query_one(".title", Static).update(told)
        if found is not None:
            widget: Any = self._widgets[reading]
            widget.show(*found)
