"""Interfaces of panes and widgets that show evidence, can be searched, or have a text at the cursor."""

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
    """A pane whose current view may not be searchable, so that it may have to show another view first."""

    async def before_search(self) -> None:
        """Show a view that can be searched."""


@runtime_checkable
class HasPaletteCommands(Protocol):
    """A pane with commands of its own in the command palette."""

    def palette_commands(self) -> Iterator[SystemCommand]:
        """Yield the commands."""


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
