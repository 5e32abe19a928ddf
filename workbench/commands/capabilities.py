"""Implement `workbench capabilities`: describe all commands for scripts, read from the functions that declare them."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from importlib.resources import files
from inspect import signature
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import typer
from typer.models import OptionInfo, ParameterInfo

from analyzers.errors import Exit
from analyzers.report import Report, Status, Verdict, json_schema
from analyzers.run import ANALYSED, Kind
from workbench.colours import CATEGORIES
from workbench.errors import UsageProblem
from workbench.rooms import FACES, data_type

TYPES: dict[object, str] = {str: "text", int: "integer", float: "float", bool: "boolean", Path: "path"}


class Parameter(msgspec.Struct, frozen=True):
    """An option or an argument of a command.

    `flags` are the spellings of an option, such as `-V` and `--version`; an argument has none. `type` is one of text,
    integer, float, boolean, path and choice; `choices` are the values of a choice. `required` says whether it must be
    given, and `multiple` whether it may be given several times. `default` is its default value; if it has none,
    `default_note` says in words what is used instead.
    """

    name: str
    flags: list[str]
    type: str
    help: str
    required: bool
    multiple: bool
    choices: list[str] = []
    default: str | None = None
    default_note: str | None = None


class Command(msgspec.Struct, frozen=True):
    """A command of `workbench`.

    `schema` is the name of the JSON document that it prints with `--json` (None: it prints none);
    `workbench schema NAME` describes the document. `usage` is the command line. `summary` is the first paragraph of its
    help, and `details` are the other paragraphs.
    """

    name: str
    summary: str
    parameters: list[Parameter]
    schema: str | None
    usage: str = ""
    details: list[str] = []


class CapabilitiesData(msgspec.Struct, frozen=True):
    """The field `data` of `workbench.capabilities/1`: all commands, the files that they read, and their exit statuses.

    `kinds` are all kinds of files that are recognised, and `analysed` are those that can be analysed by themselves.
    `categories` are the categories into which memory is divided. `exit_codes` maps the meaning of an exit status to its
    number.
    """

    commands: list[Command]
    kinds: list[str]
    analysed: list[str]
    categories: list[str]
    exit_codes: dict[str, int]


def capabilities(app: typer.Typer) -> Report[CapabilitiesData]:
    """Return a report that describes all commands of the command line `app`."""
    commands = list(_describe_commands(app, _documents_of_commands()))
    data = CapabilitiesData(
        commands=commands,
        kinds=list(Kind),
        analysed=list(ANALYSED),
        categories=list(CATEGORIES),
        exit_codes={code.name.lower(): int(code) for code in Exit},
    )
    text = f"{len(commands)} commands; ask `workbench inspect PATH --json` first"
    verdict = Verdict(status=Status.OK, kind="capabilities", sentence=text, confidence=1.0)
    return Report(schema="workbench.capabilities/1", inputs=[], verdict=verdict, findings=[], data=data)


def skill() -> str:
    return files("workbench").joinpath("SKILL.md").read_text(encoding="utf-8")


def _documents_of_commands() -> dict[str, str]:
    return {faces.command: name for name, faces in FACES.items() if faces.command} | {"config explain": "config"}


def _describe_commands(app: typer.Typer, documents: Mapping[str, str], prefix: str = "") -> Iterator[Command]:
    """Yield every command of an application; `prefix` is the group of a command, such as `config` in `config show`.

    `documents` has the document that each command prints.
    """
    for info in app.registered_commands:
        assert info.callback is not None, "a command is registered with its function"
        name = f"{prefix}{info.name or info.callback.__name__}"
        summary, *details = [
            " ".join(part.split()) for part in (info.help or info.callback.__doc__ or "").split("\n\n")
        ]
        options = parameters(info.callback)
        words = ["workbench", name, info.options_metavar or "[OPTIONS]", *map(argument, options)]
        usage = " ".join(word for word in words if word)
        yield Command(name, summary, options, documents.get(name), usage, details)
    for group in app.registered_groups:
        assert group.typer_instance is not None, "a group is registered with its application"
        yield from _describe_commands(group.typer_instance, documents, f"{group.name} ")


def argument(parameter: Parameter) -> str:
    """Return an argument as it appears in the usage line of its command, such as `[PATHS...]`; empty for an option."""
    name = f"{parameter.name.upper()}{'...' if parameter.multiple else ''}"
    return "" if parameter.flags else name if parameter.required else f"[{name}]"


def parameters(function: Callable[..., object]) -> list[Parameter]:
    """Return the arguments and options of a command; its function declares each as `Annotated[type, info]`."""
    hints = get_type_hints(function, include_extras=True)
    declared = [(parameter, get_args(hints[parameter.name])) for parameter in signature(function).parameters.values()]
    return [describe(parameter, hint[0], hint[1]) for parameter, hint in declared if len(hint) > 1]


def describe(parameter: inspect.Parameter, kind: object, info: ParameterInfo) -> Parameter:
    """Return the description of one parameter of a command's function.

    The annotation of the parameter is `Annotated[kind, info]`; `info` says whether it is an option or an argument.
    """
    plain = next((inner for inner in get_args(kind) if inner is not type(None)), kind)
    many = get_origin(kind) is list or get_origin(plain) is list
    plain = get_args(plain)[0] if get_origin(plain) is list else plain
    choices = list(plain) if isinstance(plain, type) and issubclass(plain, StrEnum) else []
    default = parameter.default if isinstance(parameter.default, str | int | float) else False
    return Parameter(
        name=parameter.name.lstrip("_"),
        flags=flags(parameter.name, info) if isinstance(info, OptionInfo) else [],
        type="choice" if choices else TYPES.get(plain, "text"),
        help=info.help or "",
        required=parameter.default is inspect.Parameter.empty,
        multiple=many,
        choices=[str(choice) for choice in choices],
        default=None if default is False else str(default),
        default_note=info.show_default if isinstance(info.show_default, str) else None,
    )


def flags(name: str, info: OptionInfo) -> list[str]:
    # In an annotation Typer takes the first spelling for the default.
    spellings = [info.default, *(info.param_decls or ())]
    declared = [text for text in spellings if isinstance(text, str) and text.startswith("-")]
    return declared or ["--" + name.lstrip("_").replace("_", "-")]


def describe_schema(name: str | None) -> str:
    """Return the JSON Schema of the document `name`; without a name, the list of all names."""
    if name is None:
        return "\n".join(FACES)
    if name not in FACES:
        raise UsageProblem(f"no document {name}", f"choose {', '.join(FACES)}")
    return msgspec.json.format(msgspec.json.encode(json_schema(document_type(name))), indent=2).decode()


def document_type(name: str) -> type[Report[object]]:
    generic: Any = Report
    found: type[Report[object]] = generic[data_type(name)]
    return found
