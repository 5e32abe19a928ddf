"""Step logs -> columns: our JSONL and torchtitan's structured logs, one row a rank and step.

All files of a run are read by one child. A line that is no JSON is counted, and told apart where it is the last: a job
that died may leave that one cut.
"""

import gzip
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from analyzers.steps.records import Own, Row, Structured, is_structured, number, whole

VERSION = 2
NAMES_AT_MOST = 64
"""Different phases, tags or groups; more are no step log of this world."""
INTEGERS = ("step", "start_ns", "dur_ns", "residual_ns", "tokens", "memory_bytes", "reserved_bytes", "alloc_retries")
NUMBERS = ("loss", "local_loss", "grad_norm")
ABSENT, FINITE, BROKEN = 0, 1, 2
"""What `loss_state` and `grad_norm_state` say."""


def read(paths: list[Path]) -> tuple[dict[str, "np.ndarray[Any, Any]"], dict[str, Any]]:
    """One row a step: `file` numbers `paths`, `phase.I` and `cpu.I` are ns of `meta.phases[I]`, `tags` is a bit set of
    `meta.tags`, `seq.I` the last collective of `meta.groups[I]` (-1: unknown).
    """
    table, files = Table(), []
    for file, path in enumerate(paths):
        try:
            files.append(table.add(file, path))
        except (OSError, EOFError) as error:
            files.append({"problem": str(error)})
    return table.columns(), table.meta() | {"files": files}


class Names:
    """Numbers names in order of appearance; hostile logs do not get to make a column of each."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def __call__(self, name: str) -> int | None:
        if name not in self.known and len(self.known) < NAMES_AT_MOST:
            self.known[name[:100].encode("utf-8", "replace").decode()] = len(self.known)
        return self.known.get(name)


class Table:
    """What accumulates over the files."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.files: list[int] = []
        self.phases, self.tags, self.groups = Names(), Names(), Names()

    def add(self, number: int, path: Path) -> dict[str, Any]:
        lines = Lines(path)
        log = Structured() if lines.structured else Own()
        steps = {step["step"]: step for row in lines if (step := log.feed(row))}
        self.take(number, list(steps.values()))
        kept = {k: v for k, v in log.header.items() if k in HEADER and isinstance(v, (int, str))}
        return {"header": kept, "torn": lines.torn, "damaged": lines.damaged, "steps": len(steps)}

    def take(self, number: int, steps: list[Row]) -> None:
        """Steps of the file of this number."""
        self.rows += steps
        self.files += [number] * len(steps)

    def columns(self) -> dict[str, "np.ndarray[Any, Any]"]:
        columns = {"file": np.array(self.files, dtype=np.int64)}
        columns |= {name: np.array([whole(row.get(name)) for row in self.rows], dtype=np.int64) for name in INTEGERS}
        for name in NUMBERS:
            values = [number(row.get(name)) for row in self.rows]
            columns[name] = np.array(values, dtype=np.float64)
            columns[f"{name}_state"] = np.array([state(row.get(name)) for row in self.rows], dtype=np.int8)
        return columns | self.named("phases", "phase", self.phases, 0) | self.named("cpu_ns", "cpu", self.phases, 0) | {
            **self.named("seqs", "seq", self.groups, -1),
            "tags": np.array([self.bits(row) for row in self.rows], dtype=np.int64),
        }  # fmt: skip

    def named(self, key: str, prefix: str, names: Names, absent: int) -> dict[str, "np.ndarray[Any, Any]"]:
        """A column for each name that occurs under `key`."""
        values: dict[int, np.ndarray[Any, Any]] = defaultdict(lambda: np.full(len(self.rows), absent, dtype=np.int64))
        for index, row in enumerate(self.rows):
            content = row.get(key)
            for name, value in content.items() if isinstance(content, dict) else ():
                if (number := names(str(name))) is not None:
                    values[number][index] = whole(value)
        return {f"{prefix}.{number}": column for number, column in values.items()}

    def bits(self, row: Row) -> int:
        tags = row.get("tags")
        numbers = {n for tag in tags if (n := self.tags(str(tag))) is not None} if isinstance(tags, list) else set()
        return sum(1 << n for n in numbers if n < 62)

    def meta(self) -> dict[str, Any]:
        return {"phases": list(self.phases.known), "tags": list(self.tags.known), "groups": list(self.groups.known)}


HEADER = ("rank", "local_rank", "world_size", "host", "pid", "attempt", "device", "started_ns", "source")


class Lines:
    """The objects in a JSONL file, gzipped or not."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if zipped else path.open("rb") as stream:
            self.lines = stream.read().splitlines()
        self.structured = is_structured(self.lines[:3])
        self.torn = False
        self.damaged = 0

    def __iter__(self) -> Iterator[Row]:
        decoder = msgspec.json.Decoder()
        for nth, line in enumerate(self.lines, 1):
            try:
                content = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self.torn = nth == len(self.lines)
                self.damaged += not self.torn
                continue
            if isinstance(content, dict):
                yield content


def state(value: Any) -> int:
    if value is None or isinstance(value, (list, dict)):
        return ABSENT
    return FINITE if math.isfinite(number(value)) else BROKEN
