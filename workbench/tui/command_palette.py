"""What the command palette finds beside Textual's own commands: views and readings by their names."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from textual.app import App, SystemCommand

from workbench.tui.widgets.view_switcher import Readings


def commands(app: App[Any], names: Sequence[str], in_sight: Sequence[Readings]) -> Iterator[SystemCommand]:
    """The views called `names`, each reading of what is in sight, and what the single letters do."""
    for number, name in enumerate(names, 1):
        yield SystemCommand(f"View {name}", f"key {number}", partial(app.run_action, f"view({number})"))
    for readings in in_sight:
        for reading, title in readings.titles.items():
            yield SystemCommand(f"Show {title}", "key v passes it", partial(readings.turn_to, reading))
    for title, key, action in LETTERS:
        yield SystemCommand(title, f"key {key}", partial(app.run_action, action))


LETTERS = (
    ("Search what is in sight", "/", "search"),
    ("Focus on what is below the chart", "f", "focus_evidence"),
    ("Source of the line under the cursor", "o", "source"),
    ("Copy what the cursor is on", "y", "copy"),
    ("Open in the browser", "w", "web"),
)
