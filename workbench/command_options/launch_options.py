"""The options of `workbench launch`; related options form a dataclass."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import typer
from typer.core import TyperCommand, TyperGroup

from workbench.command_options.options import Nodes, Scheduler, one_of
from workbench.errors import UsageProblem


class CommandAfterDashes(TyperCommand):
    """A Click command that keeps the words after `--` unparsed, in `ctx.obj`: None without `--`."""

    only_with = ""
    """The option without which `--` only allows paths that begin with a dash; empty: a command always follows."""

    def options(self, words: list[str]) -> list[str]:
        return words

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words before `--`, and store the words after it."""
        before = args[: args.index("--")] if "--" in args else args
        if "--" in args and (not self.only_with or self.only_with in before):
            ctx.obj = tuple(args[len(before) + 1 :])
            args = before
        return super().parse_args(ctx, self.options(args))


class ProveCommand(CommandAfterDashes):
    """The Click command `inspect`: only with `--prove` a command follows after `--`."""

    only_with = "--prove"


_FOREIGN = "A command after --"


@dataclass(frozen=True)
class ProcessOptions:
    nproc: Annotated[
        int | None, typer.Option(help="Number of processes on this node.", show_default="devices, else 2", min=1)
    ] = None
    nnodes: Nodes = 1
    rdzv_endpoint: Annotated[str, typer.Option(help="host:port of the rendezvous, the same on every node.")] = (
        "localhost:0"
    )
    max_restarts: Annotated[int, typer.Option(help="How many times to restart the job when it fails.", min=0)] = 0
    collect: Annotated[
        str | None,
        typer.Option(
            help="A URL where the files of nodes without a shared disk come together: s3://, gs://, sftp://, ...",
            show_default=False,
        ),
    ] = None
    trainer: Annotated[
        str,
        typer.Option(
            help="`workbench`, or the Python module of another trainer.",
            autocompletion=one_of("workbench", "torchtitan"),
        ),
    ] = "workbench"
    image: Annotated[
        str | None, typer.Option(help="With --scheduler kubernetes: the container image.", show_default=False)
    ] = None
    scheduler: Annotated[Scheduler, typer.Option(help="What starts the processes.")] = Scheduler.LOCAL


@dataclass(frozen=True)
class ForeignOptions:
    """Options for the command after `--`, which may be any training job of the user."""

    timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds until a collective gives up, if the script sets no timeout; dumps come after 0.4 of it.",
            rich_help_panel=_FOREIGN,
            show_default="the script's",
            min=1.0,
        ),
    ] = None
    profile_step: Annotated[
        int | None,
        typer.Option(help="Profile this step on every rank.", rich_help_panel=_FOREIGN, show_default=False, min=1),
    ] = None
    find_holders: Annotated[
        bool,
        typer.Option(
            "--find-holders",
            help="Look for what keeps the tensors that each step leaves: lists, caches, attributes, graphs.",
            rich_help_panel=_FOREIGN,
        ),
    ] = False
    recorders: Annotated[
        bool, typer.Option("--recorders/--no-recorders", help="Attach the recorders.", rich_help_panel=_FOREIGN)
    ] = True


_FAKE_DRY_RUN = {"--dry-run=fake": ("--comm.mode", "fake_backend")}
"""{option: trainer flags that replace it on the command line}.

`--dry-run=fake` is replaced before Click parses the command line, because `--dry-run` alone is an option without a
value, and Click knows no options with an optional value.
"""


class LaunchCommand(CommandAfterDashes):
    """The Click command `launch`, with a command after `--`."""

    def options(self, words: list[str]) -> list[str]:
        """Return the options with `--dry-run=fake` replaced."""
        wrong = [word for word in words if word.startswith("--dry-run=") and word not in _FAKE_DRY_RUN]
        if wrong:
            raise UsageProblem(
                f"{wrong[0]} is not an option", "give --dry-run, which prints the command, or --dry-run=fake"
            )
        return [word for given in words for word in _FAKE_DRY_RUN.get(given, (given,))]


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
