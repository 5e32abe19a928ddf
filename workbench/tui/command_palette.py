"""Commands for Textual's command palette: one for each tab, each view and each single-key action."""

from collections.abc import Iterator, Sequence
from functools import partial

from textual.app import App, SystemCommand

from workbench.tui.widgets.view_switcher import ViewSwitcher

KEYS = (
    ("Search the view that is shown", "/", "search"),
    ("Give the view below the chart all the room", "f", "focus_evidence"),
    ("Open the source of the line under the cursor", "o", "source"),
    ("Copy the text under the cursor", "y", "copy"),
    ("Open in the browser", "w", "web"),
)
"""(title, key, action) of each action that a single key starts."""


def commands(app: App[None], tabs: Sequence[str], shown: Sequence[ViewSwitcher]) -> Iterator[SystemCommand]:
    """Yield a palette command for each tab, each view of the switchers in `shown`, and each single-key action."""
    for number, name in enumerate(tabs, 1):
        yield SystemCommand(f"View {name}", f"key {number}", partial(app.run_action, f"view({number})"))
    for switcher in shown:
        for view, title in switcher.titles.items():
            yield SystemCommand(f"Show {title}", "key v turns to it", partial(switcher.turn_to, view))
    for title, key, action in KEYS:
        yield SystemCommand(title, f"key {key}", partial(app.run_action, action))
