"""Make the manual pages that are installed with the command.

`docs/refresh.py` writes them to `share/man`: a page for `workbench` and one for each command.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import typer

from analyzers.report import tool_version
from workbench.cli import EPILOG, app
from workbench.commands.capabilities import Command, Parameter, capabilities

SHARE = Path(__file__).parents[1] / "share"
WORDS = {"text": "TEXT", "integer": "N", "float": "NUMBER", "path": "PATH", "choice": "", "boolean": ""}
ENVIRONMENT = {
    "WORKBENCH_CACHE": "The folder of what was read, by default below ~/.cache.",
    "WORKBENCH_DEBUG": "With any value: the same as --debug.",
    "NO_COLOR": "With any value: print without colours.",
}


def man_pages() -> Iterator[tuple[Path, str]]:
    """Yield (path, text) of every manual page."""
    commands = capabilities(app).data.commands
    yield page_path(""), overview(commands)
    for command in commands:
        yield page_path(command.name), command_page(command)


def page_path(name: str) -> Path:
    """Return the path of the manual page of a command; an empty name stands for `workbench` itself."""
    return SHARE / "man" / "man1" / f"{page_name(name)}.1"


def page_name(name: str) -> str:
    return "-".join(["workbench", *name.split()])


def overview(commands: list[Command]) -> str:
    """Return the manual page of `workbench`: its commands, exit statuses and environment variables."""
    lines = [*head("", "say why a PyTorch training run broke or is slow"), ".B workbench", roff("COMMAND [OPTIONS]")]
    lines += [".SH DESCRIPTION", roff(str(typer.main.get_command(app).help))]
    lines += [".SH COMMANDS"]
    for command in commands:
        lines += [".TP", f".BR {roff(page_name(command.name))} (1)", roff(command.summary)]
    lines += [".SH OPTIONS", ".TP", f'.BR {roff("-V")} ", " {roff("--version")}', "Print the version."]
    lines += [".TP", f'.BR {roff("-h")} ", " {roff("--help")}', "Print the help; each command has its own."]
    lines += [".SH EXIT STATUS", *exit_statuses(), ".SH ENVIRONMENT"]
    for name, text in ENVIRONMENT.items():
        lines += [".TP", f".B {name}", roff(text)]
    return "\n".join(lines) + "\n"


def exit_statuses() -> Iterator[str]:
    for part in EPILOG.partition(": ")[2].rstrip(".").split("; "):
        number, _, meaning = part.partition(" ")
        yield from (".TP", f".B {number}", roff(f"{meaning[0].upper()}{meaning[1:]}."))


def command_page(command: Command) -> str:
    """Return the manual page of a command."""
    lines = [*head(command.name, f"{command.summary[0].lower()}{command.summary[1:]}".rstrip("."))]
    lines += [roff(command.usage), ".SH DESCRIPTION", roff(command.summary)]
    for paragraph in command.details:
        lines += [".PP", roff(paragraph)]
    for title, chosen in (
        ("ARGUMENTS", [one for one in command.parameters if not one.flags]),
        ("OPTIONS", [one for one in command.parameters if one.flags]),
    ):
        lines += [f".SH {title}"] if chosen else []
        lines += [line for parameter in chosen for line in described(parameter)]
    if command.schema:
        lines += [".SH JSON", roff(f"--json prints workbench.{command.schema}/1: workbench schema {command.schema}")]
    lines += [".SH SEE ALSO", f".BR {roff('workbench')} (1)"]
    return "\n".join(lines) + "\n"


def head(name: str, purpose: str) -> list[str]:
    """Return the first lines of a page, up to the beginning of its synopsis."""
    title = page_name(name)
    return [
        '.\\" Made by docs/refresh.py.',
        f'.TH {roff(title.upper())} 1 "" "workbench {tool_version()}" "workbench"',
        ".SH NAME",
        f"{roff(title)} \\- {roff(purpose)}",
        ".SH SYNOPSIS",
    ]


def described(parameter: Parameter) -> Iterator[str]:
    """Yield the lines on an option or argument."""
    kind = "|".join(parameter.choices) or WORDS[parameter.type]
    spelled = ", ".join(parameter.flags) or f"{parameter.name.upper()}{'...' if parameter.multiple else ''}"
    yield ".TP"
    yield f"\\fB{roff(spelled)}\\fR" + (f" \\fI{roff(kind)}\\fR" if kind and parameter.flags else "")
    usual = parameter.default or parameter.default_note
    yield roff(parameter.help + (f" Default: {usual}." if usual else ""))


def roff(text: str) -> str:
    """Return text as a roff formatter prints it, whatever signs it has."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("·", ";")
    return re.sub(r"^(?=[.'])", r"\\&", escaped)
