"""Read step logs whose lines all have the same fields (such as this project's), five times as fast as `jsonl`.

All lines are decoded at once into one struct type. The names of phases and process groups are not known before a file
is read, so its first line defines the struct, with a field for each name. If a later line has a new name, the name is
added and all lines are decoded again. A file with any other kind of line is read by the general reader in `jsonl`.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from analyzers.columns import Column
from analyzers.steps.reading.log_lines import NAMED, NAMES_AT_MOST, UNKNOWN, Content, Line, integers, numbers

Row = msgspec.Struct
_PLAIN: list[tuple[str, Any, Any]] = [
    (name, int, default)
    for name, default in (
        ("start_ns", 0), ("dur_ns", -1), ("residual_ns", 0), ("tokens", 0), ("memory_bytes", 0),
        ("reserved_bytes", 0), ("alloc_retries", 0),
    )
]  # fmt: skip
_NEW_NAME = re.compile(r"unknown field `(.*)` - at `\$\[\d+\]\.(\w+)`$", re.DOTALL)
_NUMBERS = ("loss", "local_loss", "grad_norm")


def content_of(text: bytes) -> Content | None:
    """Return the lines of a step log as columns; None if they do not all have the same fields."""
    first, _, _ = text.partition(b"\n")
    try:
        # The first line has nearly always all names, so most files are decoded once.
        sample = msgspec.json.decode(first, type=Line)
        names = {field: list(getattr(sample, field)) for field, _, _ in NAMED}
        rows = decoded(text, names)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    columns = {name: column(rows, name) for name in ("step", *(name for name, _, _ in _PLAIN))}
    columns |= {name: np.full(len(rows), value) for name, value in (("rank", UNKNOWN), ("attempt", 0), ("covers", 1))}
    for name in _NUMBERS:
        columns |= numbers(name, [*map(attrgetter(name), rows)])
    named = {}
    for field, known in names.items():
        parts = [*map(attrgetter(field), rows)]
        named[field] = {name: column(parts, f"f{i}") for i, name in enumerate(known)}
    return Content(columns, named, [*map(attrgetter("tags"), rows)])


def decoded(text: bytes, names: dict[str, list[str]]) -> list[Any]:
    """Return the lines of a step log as structs.

    `names` is {field: known names in it}, such as the phases in the field `phases`. Names that only the text has are
    added to `names`.

    Raises:
        msgspec.MsgspecError: A line has other fields.
    """
    while True:
        try:
            return decoder(tuple(map(tuple, names.values()))).decode_lines(text)
        except msgspec.ValidationError as error:
            # msgspec has the name of an unknown field in its message only.
            match = _NEW_NAME.search(str(error))
            if not match or match[2] not in names or match[1] in names[match[2]]:
                raise
            names[match[2]].append(match[1])


def column(rows: Sequence[Any], name: str) -> Column:
    """Return the integer field `name` of all rows as an int64 column."""
    return integers([*map(attrgetter(name), rows)])


# The logs of all ranks have the same names, so one decoder serves nearly all files.
@lru_cache(maxsize=8)
def decoder(names: tuple[tuple[str, ...], ...]) -> "msgspec.json.Decoder[Any]":
    """Return a decoder for step-log lines whose named values, such as phases, have only the given names.

    `names` has a tuple of names for each field of `NAMED`, in the same order.

    Raises:
        msgspec.MsgspecError: A field has more names than a log may have (NAMES_AT_MOST).
    """
    if max(map(len, names), default=0) > NAMES_AT_MOST:
        raise msgspec.MsgspecError("too many names")
    parts = [
        (field, kind := named(known, absent), msgspec.field(default_factory=kind))
        for (field, _, absent), known in zip(NAMED, names, strict=True)
    ]
    rest: list[tuple[str, Any, Any]] = [(name, float | str | None, None) for name in _NUMBERS]
    rest += [("tags", list[str], msgspec.field(default_factory=list)), ("limit_bytes", int | None, None)]
    fields: list[Any] = [("step", int), *_PLAIN, *parts, *rest]
    # gc=False: rows form no cycles, and a garbage collector that tracks millions of them takes time.
    return msgspec.json.Decoder(msgspec.defstruct("Row", fields, forbid_unknown_fields=True, gc=False))


def named(known: Sequence[str], absent: int) -> type[Row]:
    """Return a struct type with an integer field for each name in `known`; a field that is missing becomes `absent`.

    Raises:
        msgspec.MsgspecError: A name has quotes or control characters, which msgspec refuses in field names.
    """
    fields = [(f"f{i}", int, absent) for i in range(len(known))]
    renamed = {f"f{i}": name for i, name in enumerate(known)}
    try:
        return msgspec.defstruct("Named", fields, rename=renamed, forbid_unknown_fields=True, gc=False)
    except ValueError as error:
        raise msgspec.MsgspecError(str(error)) from error
