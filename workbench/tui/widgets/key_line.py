"""The keys that count right now, in one line."""

from rich.style import Style
from rich.text import Text
from textual.screen import Screen
from textual.widgets import Static


class KeyLine(Static):
    """Textual's own footer is a widget a key, all made anew whenever the focus moves; that takes most of a paint."""

    DEFAULT_CSS = "KeyLine { dock: bottom; height: 1; background: $footer-background; color: $footer-foreground; }"

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._tell)
        self._tell(self.screen)

    def _tell(self, screen: Screen[object]) -> None:
        """Keys and what they do; a click does the same."""
        line, told = Text(no_wrap=True, overflow="ellipsis"), set()
        for _, binding, enabled, _ in screen.active_bindings.values():
            if binding.show and enabled and binding.action not in told:
                told.add(binding.action)
                click = Style(meta={"@click": f"app.simulate_key('{binding.key}')"})
                line.append(f" {self.app.get_key_display(binding)} ", Style(bold=True) + click)
                line.append(f"{binding.description} ", click)
        line.append(" ^p ", "bold").append("Palette")
        self.update(line)
