"""Step logs whose lines all have the same names, as our recorder writes them, decoded as one type: a fifth of the time.

The names of phases and groups are in the file; so its first line makes a type with a field for each, which all are
decoded with at once; a name that comes later is added, and they are decoded again. A file that has any line of another
kind is left to the reader of all kinds.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from analyzers.steps.reading.log_lines import NAMED, NAMES_AT_MOST, UNKNOWN, Content, Line, integers, numbers

Row = msgspec.Struct
PLAIN: list[tuple[str, Any, Any]] = [
    (name, int, default)
    for name, default in (
        ("start_ns", 0), ("dur_ns", -1), ("residual_ns", 0), ("tokens", 0), ("memory_bytes", 0),
        ("reserved_bytes", 0), ("alloc_retries", 0),
    )
]  # fmt: skip
NEW_NAME = re.compile(r"unknown field `(.*)` - at `\$\[\d+\]\.(\w+)`$", re.DOTALL)
NUMBERS = ("loss", "local_loss", "grad_norm")


def content_of(text: bytes) -> Content | None:
    """The lines of a text; None where they are not all of one kind."""
    first, _, _ = text.partition(b"\n")
    try:
        sample = msgspec.json.decode(first, type=Line)
        names = {field: list(getattr(sample, field)) for field, _, _ in NAMED}
        rows = decoded(text, names)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    columns = {name: column(rows, name) for name in ("step", *(name for name, _, _ in PLAIN))}
    columns |= {name: np.full(len(rows), value) for name, value in (("rank", UNKNOWN), ("attempt", 0), ("covers", 1))}
    for name in NUMBERS:
        columns |= numbers(name, [*map(attrgetter(name), rows)])
    named = {}
    for field, known in names.items():
        parts = [*map(attrgetter(field), rows)]
        named[field] = {name: column(parts, f"f{i}") for i, name in enumerate(known)}
    return Content(columns, named, [*map(attrgetter("tags"), rows)])


def decoded(text: bytes, names: dict[str, list[str]]) -> list[Any]:
    """The lines; `names` (of each field of `NAMED`) gets those that it lacks.

    Raises:
        msgspec.MsgspecError: A line is of another kind.
    """
    while True:
        try:
            return decoder(tuple(map(tuple, names.values()))).decode_lines(text)
        except msgspec.ValidationError as error:
            found = NEW_NAME.search(str(error))
            if not found or found[2] not in names or found[1] in names[found[2]]:
                raise
            names[found[2]].append(found[1])


def column(rows: Sequence[Any], name: str) -> Any:
    return integers([*map(attrgetter(name), rows)])


@lru_cache(maxsize=8)
def decoder(names: tuple[tuple[str, ...], ...]) -> "msgspec.json.Decoder[Any]":
    """For lines whose fields of names (`NAMED`) have these ones at most.

    Raises:
        msgspec.MsgspecError: They are more than a log has.
    """
    if max(map(len, names), default=0) > NAMES_AT_MOST:
        raise msgspec.MsgspecError("too many names")
    parts = [
        (field, kind := named(known, absent), msgspec.field(default_factory=kind))
        for (field, _, absent), known in zip(NAMED, names, strict=True)
    ]
    rest: list[tuple[str, Any, Any]] = [(name, float | str | None, None) for name in NUMBERS]
    rest += [("tags", list[str], msgspec.field(default_factory=list)), ("limit_bytes", int | None, None)]
    fields: list[Any] = [("step", int), *PLAIN, *parts, *rest]
    return msgspec.json.Decoder(msgspec.defstruct("Row", fields, forbid_unknown_fields=True, gc=False))


def named(known: Sequence[str], absent: int) -> type[Row]:
    """A type with an integer for each name.

    Raises:
        msgspec.MsgspecError: One of them cannot be a key of such a type, as it has quotes or control characters.
    """
    fields = [(f"f{i}", int, absent) for i in range(len(known))]
    renamed = {f"f{i}": name for i, name in enumerate(known)}
    try:
        return msgspec.defstruct("Named", fields, rename=renamed, forbid_unknown_fields=True, gc=False)
    except ValueError as error:
        raise msgspec.MsgspecError(str(error)) from error
