"""How the run was configured, and where each setting came from."""

from typing import Any

from textual.app import ComposeResult
from textual.containers import Vertical

from workbench.present.table import table
from workbench.run_settings import SIGNS, run_settings
from workbench.tui.widgets.tables import Grid


class ConfigPane(Vertical):
    """Every setting with its value, origin and class, those that somebody set first; `/` searches."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        super().__init__()
        self._manifest = manifest

    def compose(self) -> ComposeResult:
        found = sorted(run_settings(self._manifest), key=lambda one: one.origin == "default")
        rows = ((one.key, f"{SIGNS.get(one.cls, '')} {one.origin}", one.value, one.reason) for one in found)
        yield Grid(table("", "setting | from | value | why", rows, len(found)), id="settings")
