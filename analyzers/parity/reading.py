"""Read `values/rank_R.jsonl` of all ranks of a run into one row per tensor and step, with sums over the whole tensor.

Each line of a file has sums over the part of a tensor that one rank holds, and how many ranks hold the same part
(`copies`). The sums are divided by `copies` before they are added, so that equal parts count once.
"""

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from analyzers.columns import Column
from analyzers.parity.model import ValueKind

VERSION = 2
KINDS = tuple(ValueKind)
_NAME_AT_MOST = 400
ROWS_AT_MOST = 5_000_000
_STEP_AT_MOST = 1 << 40
_COPIES_AT_MOST = 1 << 24
_ELEMENTS_AT_MOST = 1 << 60
_SUMS = ("sum", "absolute", "square", "projection", "elements")


class Line(msgspec.Struct):
    """One line of a file `values/rank_R.jsonl`: sums over rank R's part of a tensor; null if not finite.

    `absolute` sums the absolute values and `square` the squares. The fields after `copies` are only set by
    `record_tensors`: the scalar product with a fixed random vector (`projection`), the dtype, the number of elements
    in all `calls` of the module in a step, the number of terms of its longest sum (`length`), and the module's class
    (`type`).
    """

    step: int
    kind: ValueKind
    name: str
    sum: float | None
    absolute: float | None
    square: float | None
    copies: int = 1
    projection: float | None = None
    dtype: str = ""
    elements: int = 0
    calls: int = 1
    length: int = 0
    type: str = ""

    @property
    def is_possible(self) -> bool:
        """Whether a recorder can have written these numbers; a damaged or hostile file may have impossible ones."""
        counts = (self.elements, self.calls, self.length)
        return (
            max(len(self.name), len(self.dtype), len(self.type)) <= _NAME_AT_MOST
            and 0 <= self.step < _STEP_AT_MOST
            and 0 < self.copies <= _COPIES_AT_MOST
            and all(0 <= count < _ELEMENTS_AT_MOST for count in counts)
        )


class Merged:
    """The sums of each recorded tensor over all ranks, in the order of the files.

    The keys of `sums` are (step, kind, name). For each key, in the same order, `places` has the (file number, line
    number) of its first occurrence, and `facts` has (calls, length, dtype) of this line. `types` maps the names of
    modules' inputs and outputs to the class of the module. `damaged` is the number of lines that could not be read.
    """

    def __init__(self) -> None:
        self.sums: dict[tuple[int, ValueKind, str], list[float]] = {}
        self.places: list[tuple[int, int]] = []
        self.facts: list[tuple[int, int, str]] = []
        self.types: dict[str, str] = {}
        self.damaged = 0

    def add(self, number: int, row: int, line: Line) -> None:
        """Add a line to the sums; `row` is its line number in the file with number `number`."""
        key = line.step, line.kind, line.name
        sums = (line.sum, line.absolute, line.square, line.projection, line.elements)
        parts = [math.nan if v is None else v / line.copies for v in sums]
        if known := self.sums.get(key):
            self.sums[key] = [a + b for a, b in zip(known, parts, strict=True)]
        elif len(self.sums) < ROWS_AT_MOST:
            self.sums[key] = parts
            self.places.append((number, row))
            self.facts.append((line.calls, line.length, line.dtype))
            if line.type:
                self.types[line.name] = line.type


def read(paths: list[Path]) -> tuple[dict[str, Column], dict[str, Any]]:
    """Return the columns of `columns_of`, and a dict with facts about the tensors.

    The dict has the names and dtypes of all tensors, the types of the modules, and the number of damaged lines.
    `paths` are the run's `values` files, in the order of the ranks.
    """
    merged, decoder = Merged(), msgspec.json.Decoder(Line)
    for number, path in enumerate(paths):
        with path.open("rb") as file:
            next(file, None)  # the first line says what the file is
            for row, text in enumerate(file):
                try:
                    line = decoder.decode(text)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    merged.damaged += 1
                    continue
                if line.is_possible:
                    merged.add(number, row, line)
                else:
                    merged.damaged += 1
    meta = {"names": names_of(merged), "dtypes": _dtypes_of(merged), "types": merged.types, "damaged": merged.damaged}
    return columns_of(merged), meta


def _dtypes_of(merged: Merged) -> list[str]:
    """Return the dtypes of all recorded tensors, each once; an empty text stands for a dtype that is not recorded."""
    return list(dict.fromkeys(dtype for _, _, dtype in merged.facts))


def names_of(merged: Merged) -> list[str]:
    """Return the names of all recorded tensors, each once, in the order of the files."""
    return list(dict.fromkeys(name for _, _, name in merged.sums))


def columns_of(merged: Merged) -> dict[str, Column]:
    """Return {name of a column: values} with a row for each tensor and step; sums are over all ranks.

    `name`, `dtype` and `kind` are indexes in `names_of`, `_dtypes_of` and `KINDS`. `file` and `row` are the position at
    which the tensor first occurs.
    """
    numbers = {name: number for number, name in enumerate(names_of(merged))}
    sums = np.array(list(merged.sums.values()), dtype=np.float64).reshape(-1, len(_SUMS))
    dtypes = {dtype: number for number, dtype in enumerate(_dtypes_of(merged))}
    places = np.array(merged.places, dtype=np.int64).reshape(-1, 2)
    return {
        "step": np.array([step for step, _, _ in merged.sums], dtype=np.int64),
        "kind": np.array([KINDS.index(kind) for _, kind, _ in merged.sums], dtype=np.int8),
        "name": np.array([numbers[name] for _, _, name in merged.sums], dtype=np.int32),
        "file": places[:, 0],
        "row": places[:, 1],
        "calls": np.array([calls for calls, _, _ in merged.facts], dtype=np.int64),
        "length": np.array([length for _, length, _ in merged.facts], dtype=np.int64),
        "dtype": np.array([dtypes[dtype] for _, _, dtype in merged.facts], dtype=np.int32),
        **{name: sums[:, number] for number, name in enumerate(_SUMS)},
    }
