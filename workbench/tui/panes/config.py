"""The pane with the configuration of the run, and the origin of each setting."""

from collections.abc import Mapping

from textual.app import ComposeResult
from textual.containers import Vertical

from workbench.present.table import table
from workbench.run_settings import SIGNS, run_settings
from workbench.tui.widgets.tables import Grid


class ConfigPane(Vertical):
    """A searchable table of all settings: value, origin, and why a setting was ignored or translated.

    A sign before the origin says how the setting was handled. Settings with their default value come last.
    """

    def __init__(self, manifest: Mapping[str, object]) -> None:
        super().__init__()
        self._manifest = manifest

    def compose(self) -> ComposeResult:
        settings = sorted(run_settings(self._manifest), key=lambda setting: setting.origin == "default")
        rows = ((s.key, s.value, f"{SIGNS.get(s.cls, '')} {s.origin}".strip(), s.reason) for s in settings)
        yield Grid(table("", "setting | value | from | why", rows, len(settings)), id="settings")
