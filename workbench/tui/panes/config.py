"""How the run was configured."""

from typing import Any

from textual.app import ComposeResult
from textual.containers import Vertical

from analyzers.compare import settings
from workbench.present.table import table
from workbench.tui.widgets.tables import Grid


class ConfigPane(Vertical):
    """Every setting of `run.json` with its value; `/` searches."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        super().__init__()
        self._manifest = manifest

    def compose(self) -> ComposeResult:
        found = list(settings(self._manifest))
        yield Grid(table("", "setting | value", found, len(found)), id="settings")
