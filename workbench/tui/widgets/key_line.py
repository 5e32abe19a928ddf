"""A footer line with the keys that currently work."""

from collections.abc import Iterable

from rich.style import Style
from rich.text import Text
from textual.screen import Screen
from textual.widgets import Static

from workbench.tui.widgets.common import call_on_new_size

_ALWAYS = ("help", "quit")
"""The ids of the keys that are shown on a screen of any width, before the key of the command palette."""


class KeyLine(Static):
    """A footer with the keys of the focused widget; keys that do not fit are left out.

    Textual's own footer has a widget per key, which is slow to redraw.
    """

    DEFAULT_CSS = "KeyLine { dock: bottom; height: 1; background: $footer-background; color: $footer-foreground; }"

    def __init__(self) -> None:
        super().__init__()
        self._keys: list[Text] = []
        self._last = Text()

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._update_keys)
        self._update_keys(self.screen)
        call_on_new_size(self, self._lay_out)

    def _update_keys(self, screen: Screen[object]) -> None:
        """Show each action once, with its key; a click on an action has the same effect as the key."""
        keys: dict[str, tuple[str | None, Text]] = {}
        for _, binding, enabled, _ in screen.active_bindings.values():
            if binding.show and enabled and binding.action not in keys:
                click = Style(meta={"@click": f"app.simulate_key('{binding.key}')"})
                key = (f" {self.app.get_key_display(binding)} ", Style(bold=True) + click)
                keys[binding.action] = binding.id, Text.assemble(key, (f"{binding.description} ", click))
        self._keys = [text for name, text in keys.values() if name not in _ALWAYS]
        always = (text for name, text in keys.values() if name in _ALWAYS)
        self._last = Text.assemble(*always, (" ^p ", "bold"), "Palette")
        self._lay_out()

    def _lay_out(self) -> None:
        room = self.size.width - self._last.cell_len
        self.update(Text.assemble(*_fitting(self._keys, room), self._last, no_wrap=True))


def _fitting(keys: Iterable[Text], width: int) -> list[Text]:
    """Return as many of the first `keys` as fit into `width` columns."""
    shown = []
    for key in keys:
        width -= key.cell_len
        if width < 0:
            break
        shown.append(key)
    return shown
