"""The collectives that one rank took part in: what identifies each on all ranks, how much it moves and how fast."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from analyzers.columns import Column
from analyzers.traces.columns.intervals import COMMUNICATION
from analyzers.traces.columns.nesting import NONE, innermost_selected
from analyzers.traces.columns.work import Work
from analyzers.traces.model import NO_STEP, OPS
from analyzers.traces.reading.distinct import combined_codes, factorize, rows_by_value
from analyzers.traces.structs import Collective

SYMMETRIC = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier", re.IGNORECASE)
"""Ends on all ranks at nearly the same moment, and on none before the last has come."""
GATHERS = re.compile(r"all_?gather", re.IGNORECASE)
TWICE = re.compile(r"all_?reduce", re.IGNORECASE)
ELEMENT_BYTES = {
    "double": 8, "float": 4, "half": 2, "bfloat16": 2, "long": 8, "int": 4, "short": 2, "byte": 1, "char": 1, "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "long int": 8, "c10::bfloat16": 2, "c10::half": 2,
}  # fmt: skip
UNKNOWN = -1


class Labels(NamedTuple):
    """A text for each of many: the number of each one's in `texts`."""

    code: Column
    texts: list[str]

    def each(self) -> list[str]:
        return [self.texts[i] for i in self.code.tolist()]


@dataclass(frozen=True)
class RankCollectives:
    """The communication of an account in order of time; `rows` are rows of the trace."""

    work: Work

    @cached_property
    def places(self) -> Column:
        """Positions in the work's rows."""
        found = np.flatnonzero(self.work.kind == COMMUNICATION)
        return found[np.argsort(self.work.start[found], kind="stable")]

    @property
    def rows(self) -> Column:
        return self.work.rows[self.places]

    @cached_property
    def noted(self) -> Column:
        """The place of each in the table of collectives: its own entry, else that of the operator that launched it."""
        c = self.work.trace.columns
        rows = c["collective_row"].astype(np.int64)
        place = np.full(len(c["start"]), NONE)
        place[rows] = np.arange(len(rows))
        telling = place >= 0
        telling &= self.work.trace.category_matches(OPS)
        around = innermost_selected(telling, c["parent"])
        launch = self.work.launch[self.places]
        operator = np.where(launch >= 0, around[launch], NONE)
        return np.where(place[self.rows] >= 0, place[self.rows], np.where(operator >= 0, place[operator], NONE))

    def told(self, name: str) -> Column:
        """A column of the table of collectives, UNKNOWN where nothing was noted."""
        values = self.work.trace.columns[f"collective_{name}"]
        return np.where(self.noted >= 0, values[self.noted], UNKNOWN) if len(values) else self.noted

    @cached_property
    def name(self) -> Labels:
        """What each is called: by the recorder, else the kernel's or annotation's own name."""
        told = self.told("name")
        return self.labels(np.where(told >= 0, told, self.work.trace.columns["name"][self.rows]))

    @cached_property
    def group(self) -> Labels:
        """The name of each one's process group; empty where nobody tells."""
        return self.labels(self.told("group"))

    @cached_property
    def dtype(self) -> Labels:
        """The type of the elements of each; empty where nobody tells."""
        told = self.labels(self.told("dtype"))
        if not self.host_shapes:
            return told
        noted = [self.host_shapes.get(row, (0, ""))[1] for row in self.rows.tolist()]
        texts = [text or own for text, own in zip(told.each(), noted, strict=True)]
        number = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        return Labels(np.array([number[text] for text in texts], np.int64), list(number))

    @cached_property
    def described(self) -> dict[str, str]:
        """What the job calls each process group; empty where the file does not tell."""
        return {group["name"]: group["desc"] for group in self.work.trace.header.get("groups", [])}

    def labels(self, numbers: Column) -> Labels:
        """Texts of the trace by their numbers; that of a negative one is empty."""
        values, code = factorize(numbers)
        return Labels(code, [self.work.trace.names[i] if i >= 0 else "" for i in values.tolist()])

    @cached_property
    def members(self) -> Column:
        """How many ranks each has; that of the whole job where nobody tells."""
        size = {group["name"]: len(group["ranks"]) for group in self.work.trace.header.get("groups", [])}
        listed = np.array([size.get(group, 0) for group in self.group.texts], np.int64)[self.group.code]
        told = self.told("members")
        return np.where(listed > 0, listed, np.where(told > 0, told, self.work.trace.header.get("world_size") or 1))

    @cached_property
    def sizes(self) -> Column:
        """Elements of the larger buffer of one rank, UNKNOWN where nobody tells."""
        told = np.maximum(self.told("elements"), self.told("elements_out"))
        if not self.host_shapes:
            return np.where(told > 0, told, UNKNOWN)
        shaped = np.array([self.host_shapes.get(row, (UNKNOWN, ""))[0] for row in self.rows.tolist()], np.int64)
        # A host's collective has only its input noted, of which an all_gather makes as many as there are ranks.
        gathers = np.array([GATHERS.search(name) is not None for name in self.name.texts], bool)[self.name.code]
        shaped *= np.where(gathers, self.members, 1)
        return np.where(told > 0, told, np.maximum(shaped, UNKNOWN))

    @cached_property
    def host_shapes(self) -> dict[int, tuple[int, str]]:
        """(elements, type) of the collectives that ran on the host, by row, where shapes were recorded."""
        if self.work.device is not None:
            return {}
        c = self.work.trace.columns
        known = dict(zip(c["shape_row"].tolist(), c["shape_text"].tolist(), strict=True))
        return {row: first_input(c.meta["shapes"][known[row]]) for row in self.rows.tolist() if row in known}

    def step(self) -> Column:
        """The number of the step of each, NO_STEP outside."""
        position = self.work.step()[self.places]
        numbers = np.array([number for number, _, _ in self.work.trace.steps] or [NO_STEP], np.int64)
        return np.where(position == NO_STEP, NO_STEP, numbers[position])


def first_input(shapes: str) -> tuple[int, str]:
    """(elements, type) of the first input in a text of shapes; unknown where it is not as it should be."""
    dims, types, _ = f"{shapes}\0\0".split("\0")[:3]
    try:
        size = int(np.prod(msgspec.json.decode(dims)[0], dtype=np.int64))
        return size, str(msgspec.json.decode(types)[0])
    except (msgspec.DecodeError, IndexError, TypeError, ValueError, KeyError):
        return UNKNOWN, ""


def collectives(met: RankCollectives) -> list[Collective]:
    """By name, group and size: how often, how long, and how fast at best."""
    kind = combined_codes(met.name.code, met.group.code, met.members, met.dtype.code, met.sizes)
    length = met.work.trace.columns["end"][met.rows] - met.work.trace.columns["start"][met.rows]
    found = [describe(met, int(mine[0]), np.sort(length[mine])) for _, mine in rows_by_value(kind)]
    return sorted(found, key=lambda one: (-one.total_ns, one.name, one.bytes))


def describe(met: RankCollectives, one: int, length: Column) -> Collective:
    """All of a kind, of which one is given, by their lengths, which ascend."""
    name, group, kind = (labels.texts[labels.code[one]] for labels in (met.name, met.group, met.dtype))
    members, size = int(met.members[one]), max(int(met.sizes[one]), 0) * ELEMENT_BYTES.get(kind.lower(), 0)
    speed = size / int(length[0]) * 1e9 if length[0] else 0.0
    return Collective(
        name=name,
        group=group,
        group_desc=met.described.get(group, ""),
        group_size=members,
        dtype=kind,
        bytes=size,
        count=len(length),
        total_ns=int(length.sum()),
        median_ns=int(length[len(length) // 2]),
        min_ns=int(length[0]),
        algorithm_bytes_per_s=round(speed),
        bus_bytes_per_s=round(speed * bus_factor(name, members)),
    )


def element_bytes(dtype: str) -> int:
    """Return the bytes of one element of a type as recorders write it (`Float`, `c10::BFloat16`); 0: unknown."""
    return ELEMENT_BYTES.get(dtype.lower(), 0)


def bus_factor(name: str, members: int) -> float:
    """Bytes that cross a link for each byte of the buffer, by the convention of nccl-tests."""
    if not SYMMETRIC.search(name) or members < 1:
        return 1.0
    return (2 if TWICE.search(name) else 1) * (members - 1) / members
