"""Options that commands share, as one parameter: a dataclass whose fields are annotated as Typer wants them."""

from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, TypeVar, get_type_hints

Command = TypeVar("Command", bound=Callable[..., Any])


def spread(function: Command) -> Command:
    """The command with an option for each field in the place of every parameter that is a dataclass."""
    hints = get_type_hints(function, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if is_dataclass(kind)}

    @wraps(function)
    def command(**given: Any) -> Any:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})  # type: ignore[operator]
        return function(**given)

    flat = [one for asked in signature(function).parameters.values() for one in flattened(asked, hints[asked.name])]
    # Typer reads both, and would otherwise find those of the function behind.
    command.__signature__ = Signature(flat)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in flat}
    return command  # type: ignore[return-value]


def flattened(asked: Parameter, kind: Any) -> Iterator[Parameter]:
    """A parameter, or one for each field of its dataclass; by keyword, so that any order will do."""
    if not is_dataclass(kind):
        yield asked.replace(annotation=kind, kind=Parameter.KEYWORD_ONLY)
        return
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=usual(field), annotation=hints[field.name])


def usual(field: Field[Any]) -> Any:
    return Parameter.empty if field.default is MISSING else field.default
