"""Print the help of `workbench` itself without rich, because importing rich would double the time of `--help`."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import typer
from typer.core import TyperGroup

_OTHERS = "Commands"
"""The section of commands without a panel."""


class Formatter(Protocol):
    """The interface of the formatter of Typer's help, whose class is not public; only what is used here."""

    def section(self, name: str) -> AbstractContextManager[None]: ...

    def write_dl(self, rows: Sequence[tuple[str, str]]) -> None: ...


class StartGroup(TyperGroup):
    """The group of all commands; its help lists them in sections by panel, as in the help that rich prints.

    Usage errors of all commands are printed without rich too.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"rich_markup_mode": None})

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        records = [param.get_help_record(ctx) for param in self.get_params(ctx)]
        _write_section(formatter, "Options", [record for record in records if record])
        for panel, rows in self.commands_by_panel(ctx).items():
            _write_section(formatter, panel, rows)
        self.format_epilog(ctx, formatter)

    def commands_by_panel(self, ctx: Any) -> dict[str, list[tuple[str, str]]]:
        """Return {panel: [(name, first paragraph of the help)]} of all visible commands."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command and not command.hidden:
                rows = panels.setdefault(getattr(command, "rich_help_panel", None) or _OTHERS, [])
                rows.append((name, _first_paragraph(command.help or "")))
        return panels


def _first_paragraph(text: str) -> str:
    return " ".join(text.split("\n\n", maxsplit=1)[0].split())


def _write_section(formatter: Formatter, name: str, rows: Sequence[tuple[str, str]]) -> None:
    with formatter.section(typer.style(name, bold=True)):
        formatter.write_dl([(typer.style(term, fg=typer.colors.CYAN), text) for term, text in rows])
