"""Read `values/rank_R.jsonl` of all ranks of a run into one row per tensor and step, with sums over the whole tensor.

Each line of a file has sums over the part of a tensor that one rank holds, and how many ranks hold the same part
(`copies`). The sums are divided by `copies` before they are added, so that equal parts count once.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from analyzers.columns import Column, Floats
from analyzers.parity.model import PHASES, Curve, CurveDifference, Phase, ValueDifference, ValueKind
from analyzers.store import Columns

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
    meta = {"names": _names_of(merged), "dtypes": _dtypes_of(merged), "types": merged.types, "damaged": merged.damaged}
    return columns_of(merged), meta


def _dtypes_of(merged: Merged) -> list[str]:
    return list(dict.fromkeys(dtype for _, _, dtype in merged.facts))


def _names_of(merged: Merged) -> list[str]:
    """Return the names of all recorded tensors, each once, in the order of the files."""
    return list(dict.fromkeys(name for _, _, name in merged.sums))


def columns_of(merged: Merged) -> dict[str, Column]:
    """Return {name of a column: values} with a row for each tensor and step; sums are over all ranks.

    `name`, `dtype` and `kind` are indexes in `_names_of`, `_dtypes_of` and `KINDS`. `file` and `row` are the position
    at which the tensor first occurs.
    """
    numbers = {name: number for number, name in enumerate(_names_of(merged))}
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


_PHASE_OF_KIND = np.array([PHASES[kind] for kind in KINDS], dtype=np.int8)
LISTED = KINDS.index(ValueKind.GRADIENT)
"""The kind `GRADIENT`, whose recorded order must be reversed.

A recording lists the gradients of parameters in the order of the model, but a backward pass computes the last one
first.
"""
KEY = ["step", "kind", "name"]


def curve_difference(
    curve: Curve, before: Mapping[int, float], after: Mapping[int, float], tolerance: float
) -> CurveDifference | None:
    """Return how a logged quantity (`curve`, such as the loss) differs between two runs; None without a common step.

    `before` and `after` map steps to the values in the first and the second run. `tolerance` is the relative difference
    that is allowed.
    """
    steps = sorted(before.keys() & after.keys())
    if not steps:
        return None
    differences = {step: relative_difference(before[step], after[step]) for step in steps}
    first = next((step for step in steps if differences[step] > tolerance), None)
    ends = (None, None) if first is None else (before[first], after[first])
    return CurveDifference(
        curve=curve, steps=len(steps), largest=max(differences.values()), step=first, a=ends[0], b=ends[1]
    )


def relative_difference(a: float, b: float) -> float:
    """Return the absolute difference of two numbers, divided by the larger of their absolute values.

    If one of the numbers is NaN or infinite, the result is 0 if both are the same, else infinite.
    """
    if not (math.isfinite(a) and math.isfinite(b)):
        # By text, because NaN is not equal to itself.
        return 0.0 if repr(a) == repr(b) else math.inf
    return abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0


def value_table(columns: Columns) -> pd.DataFrame:
    """Return a table of the recorded tensors of a run, with one row per tensor and step.

    `columns` is the result of `reading.read` for the run. The table has the step, kind (index in `KINDS`), name and
    dtype of the tensor, and sums over its values: `sum`, `absolute` and `square`. Sorting by `phase`, `file` and `row`
    puts the rows of a step into the order in which the step computes the tensors.
    """
    names = np.array(columns.meta["names"], dtype=object)
    table = pd.DataFrame({name: np.asarray(columns[name]) for name in columns})
    table["name"] = names[table["name"].to_numpy()] if len(names) else table["name"].astype(object)
    dtypes = np.array(columns.meta["dtypes"], dtype=object)
    table["dtype"] = dtypes[table["dtype"].to_numpy()] if len(dtypes) else table["dtype"].astype(object)
    table["phase"] = _PHASE_OF_KIND[table["kind"].to_numpy()]
    backward, listed = table["phase"].isin((Phase.BACKWARD, Phase.GRADIENT)), table["kind"] == LISTED
    # Ranks are numbered along the pipeline: forward passes go up, backward passes down.
    table["file"] = table["file"].where(~backward, -table["file"])
    table["row"] = table["row"].where(~listed, -table["row"])
    return table


def common_values(a: pd.DataFrame, b: pd.DataFrame, columns: Sequence[str] = ()) -> pd.DataFrame:
    """Return the tensors that both runs recorded, with their difference, in the order in which a step computes them.

    The columns of the runs `a` and `b` have the suffixes `_a` and `_b`. The order is taken from the run with fewer
    pipeline stages. `columns` are further columns of both runs to keep.
    """
    ordered = a if a["file"].abs().max() <= b["file"].abs().max() else b
    kept = [*KEY, "sum", "absolute", "square", *columns]
    both = a[kept].merge(b[kept], on=KEY, suffixes=("_a", "_b"))
    both = both.merge(ordered[[*KEY, "phase", "file", "row"]], on=KEY)
    both = both.sort_values(["step", "phase", "file", "row"], kind="stable", ignore_index=True)
    both["difference"] = differences(both)
    return both


def differences(both: pd.DataFrame) -> Floats:
    """Return, for each row of `both`, the relative difference of a tensor between the two runs.

    It is the largest of three differences: of the norm, of the sum of absolute values, and of the sum. The sum may
    itself be close to zero if positive and negative values cancel, so its difference is relative to the sum of absolute
    values. The result is infinite if the tensor is finite in only one run, and 0 if it is finite in neither.
    """
    norms = [np.sqrt(both[f"square_{side}"].to_numpy(np.float64)) for side in "ab"]
    sizes = [both[f"absolute_{side}"].to_numpy(np.float64) for side in "ab"]
    totals = [both[f"sum_{side}"].to_numpy(np.float64) for side in "ab"]
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = [
            np.abs(pair[0] - pair[1]) / np.maximum(*scale)
            for pair, scale in ((norms, norms), (sizes, sizes), (totals, sizes))
        ]
    known = [np.isfinite(norm) for norm in norms]
    largest = np.nan_to_num(np.maximum.reduce(parts), nan=0.0, posinf=np.inf)
    result: Floats = np.where(known[0] & known[1], largest, np.where(known[0] == known[1], 0.0, np.inf))
    return result


def first_difference(both: pd.DataFrame, tolerance: float) -> ValueDifference | None:
    """Return the first tensor that differs between two runs by more than the tolerance; None if none does.

    `both` has the tensors of both runs in the order in which a step computes them.
    """
    beyond = np.flatnonzero(both["difference"].to_numpy() > tolerance)
    if not len(beyond):
        return None
    return ValueDifference(name=str(both["name"].iloc[beyond[0]]), **facts_at(both, int(beyond[0])))


def facts_at(both: pd.DataFrame, index: int) -> dict[str, Any]:
    """Return the fields that `ValueDifference` and `Divergence` share, for row `index` of the compared tensors."""
    row = both.iloc[index]
    return {
        "step": int(row["step"]),
        "kind": KINDS[int(row["kind"])],
        "a": float(np.sqrt(row["square_a"])),
        "b": float(np.sqrt(row["square_b"])),
        "difference": float(row["difference"]),
        "agreed": index,
        "agreed_to": float(both["difference"].to_numpy()[:index].max(initial=0.0)),
    }
