"""Let commands share groups of options: a dataclass in a command's function becomes one option per field."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints

Command = Callable[..., None]


def spread_groups(function: Command) -> Command:
    """Return the command with each dataclass parameter replaced by one option for each field of the dataclass.

    For example, the function `inspect(paths, read, show)` becomes `inspect(paths, rank, step, ..., as_json, ...)` for
    Typer.
    """
    hints = get_type_hints(function, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if is_dataclass(kind) and isinstance(kind, type)}

    @wraps(function)
    def command(**given: object) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        function(**given)

    parameters = list(_spread_parameters(function, hints))
    # Typer reads signature and annotations, and would otherwise find those of the wrapped function.
    vars(command)["__signature__"] = Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _spread_parameters(function: Command, hints: Mapping[str, Any]) -> Iterator[Parameter]:
    """Yield the parameters of a function for Typer: a dataclass becomes one parameter for each of its fields.

    `hints` is {parameter: its type}. All parameters are keyword-only, so that their order does not matter.
    """
    for parameter in signature(function).parameters.values():
        kind = hints[parameter.name]
        if not is_dataclass(kind):
            yield parameter.replace(annotation=kind, kind=Parameter.KEYWORD_ONLY)
            continue
        field_hints = get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            hint = field_hints[field.name]
            yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=_default_of(field), annotation=hint)


def _default_of(field: "Field[object]") -> object:
    return Parameter.empty if field.default is MISSING else field.default
