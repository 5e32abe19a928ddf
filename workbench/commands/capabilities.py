"""`workbench capabilities`: what can be asked, how, and what comes back; read off the commands themselves."""

import inspect
from collections.abc import Callable, Iterator
from enum import StrEnum
from importlib.resources import files
from inspect import signature
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import typer

from analyzers.errors import Exit
from analyzers.report import Report, Status, Verdict, tool_version
from analyzers.run import ANALYSED, Kind
from workbench.colours import CATEGORIES

DOCUMENT_OF = {
    "inspect": "incident",
    "hang": "hang",
    "trace": "trace",
    "steps": "steps",
    "compare": "compare",
    "estimate": "estimate",
    "tokens": "tokens",
    "doctor": "doctor",
    "capabilities": "capabilities",
    "config explain": "config",
}
"""What `--json` of a command prints: the name for `workbench schema`."""

TYPES = {str: "text", int: "integer", float: "float", bool: "boolean", Path: "path"}


class Parameter(msgspec.Struct, frozen=True):
    """An argument (no `flags`) or option of a command. `type` is one of text, integer, float, boolean, path, choice."""

    name: str
    flags: list[str]
    type: str
    help: str
    required: bool
    multiple: bool
    choices: list[str] = []
    default: str | None = None


class Command(msgspec.Struct, frozen=True):
    """A command. `schema` names the document that it prints with `--json`."""

    name: str
    summary: str
    parameters: list[Parameter]
    schema: str | None


class CapabilitiesData(msgspec.Struct, frozen=True):
    """All commands, what they read, and what exit statuses mean."""

    commands: list[Command]
    kinds: list[str]
    analysed: list[str]
    categories: list[str]
    exit_codes: dict[str, int]


def capabilities(app: typer.Typer) -> Report[CapabilitiesData]:
    """What the command line `app` can do."""
    commands = list(described(app))
    data = CapabilitiesData(
        commands=commands,
        kinds=list(Kind),
        analysed=list(ANALYSED),
        categories=list(CATEGORIES),
        exit_codes={code.name.lower(): int(code) for code in Exit},
    )
    text = f"{len(commands)} commands; ask `workbench inspect PATH --json` first"
    verdict = Verdict(status=Status.OK, kind="capabilities", sentence=text, confidence=1.0)
    return Report(
        schema="workbench.capabilities/1", version=tool_version(), inputs=[], verdict=verdict, findings=[], data=data
    )


def skill() -> str:
    """How to work with this tool, for a coding agent."""
    return files("workbench").joinpath("SKILL.md").read_text(encoding="utf-8")


def described(app: typer.Typer, prefix: str = "") -> Iterator[Command]:
    """Every command of an application, those of its groups as `config show`."""
    for info in app.registered_commands:
        assert info.callback is not None, "a command is registered with its function"
        name = f"{prefix}{info.name or info.callback.__name__}"
        summary = " ".join((info.help or info.callback.__doc__ or "").partition("\n\n")[0].split())
        yield Command(name, summary, parameters(info.callback), DOCUMENT_OF.get(name))
    for group in app.registered_groups:
        assert group.typer_instance is not None, "a group is registered with its application"
        yield from described(group.typer_instance, f"{group.name} ")


def parameters(function: Callable[..., Any]) -> list[Parameter]:
    """The arguments and options that a command's function declares as `Annotated[type, typer.Option(...)]`."""
    hints = get_type_hints(function, include_extras=True)
    declared = [(one, get_args(hints[one.name])) for one in signature(function).parameters.values()]
    return [parameter(one, annotation[0], annotation[1]) for one, annotation in declared if len(annotation) > 1]


def parameter(one: inspect.Parameter, kind: Any, info: Any) -> Parameter:
    plain = next((inner for inner in get_args(kind) if inner is not type(None)), kind)
    many = get_origin(kind) is list or get_origin(plain) is list
    plain = get_args(plain)[0] if get_origin(plain) is list else plain
    default = one.default if isinstance(one.default, str | int | float) and one.default is not False else None
    return Parameter(
        name=one.name.lstrip("_"),
        flags=flags(one.name, info) if isinstance(info, typer.models.OptionInfo) else [],
        type="choice" if isinstance(plain, type) and issubclass(plain, StrEnum) else TYPES.get(plain, "text"),
        help=info.help or "",
        required=one.default is inspect.Parameter.empty,
        multiple=many,
        choices=list(plain) if isinstance(plain, type) and issubclass(plain, StrEnum) else [],
        default=None if default is None else str(default),
    )


def flags(name: str, info: Any) -> list[str]:
    """How an option is spelled. The first spelling of an annotation is kept where a default would stand."""
    declared = [text for text in (info.default, *(info.param_decls or ())) if isinstance(text, str) and text[:1] == "-"]
    return declared or ["--" + name.lstrip("_").replace("_", "-")]
