"""Interfaces of panes and widgets: showing evidence, being searched, and giving the text at the cursor."""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from textual.app import SystemCommand

from workbench.evidence_link import EvidenceLink


@runtime_checkable
class ShowsEvidence(Protocol):
    """A pane that can show the evidence of a finding."""

    async def show_evidence(self, link: EvidenceLink) -> None:
        """Show the rank, time, block or row that an evidence link names."""


@runtime_checkable
class PreparesSearch(Protocol):
    """A pane that can switch to a searchable view, because its current view may not be searchable."""

    async def before_search(self) -> None:
        """Switch to a view that can be searched."""


@runtime_checkable
class HasPaletteCommands(Protocol):
    """A pane that adds its own commands to the command palette."""

    def palette_commands(self) -> Iterator[SystemCommand]:
        """Yield the pane's commands for the command palette."""


@runtime_checkable
class Searchable(Protocol):
    """A widget that can be searched."""

    def search(self, text: str) -> None:
        """Move the cursor to the first match of the text."""


@runtime_checkable
class HasCursorText(Protocol):
    """A widget that can return the text under its cursor."""

    def text_at_cursor(self) -> str:
        """Return the text under the cursor; empty if there is none."""
