"""A footer line with the keys that currently work."""

from rich.style import Style
from rich.text import Text
from textual.screen import Screen
from textual.widgets import Static


class KeyLine(Static):
    """A footer with the keys of the focused widget.

    Textual's own footer has a widget per key, which is slow to redraw.
    """

    DEFAULT_CSS = "KeyLine { dock: bottom; height: 1; background: $footer-background; color: $footer-foreground; }"

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._update_keys)
        self._update_keys(self.screen)

    def _update_keys(self, screen: Screen[object]) -> None:
        """Show each action once, with its key; a click has the same effect as the key."""
        line, actions = Text(no_wrap=True, overflow="ellipsis"), set()
        for _, binding, enabled, _ in screen.active_bindings.values():
            if binding.show and enabled and binding.action not in actions:
                actions.add(binding.action)
                click = Style(meta={"@click": f"app.simulate_key('{binding.key}')"})
                line.append(f" {self.app.get_key_display(binding)} ", Style(bold=True) + click)
                line.append(f"{binding.description} ", click)
        line.append(" ^p ", "bold").append("Palette")
        self.update(line)
