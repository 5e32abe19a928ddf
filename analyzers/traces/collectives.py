"""Describe the collectives of one rank: their names, process groups, data types and sizes, and their bandwidth."""

import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from analyzers.columns import Column, Integers, Mask
from analyzers.traces.columns import COMMUNICATION, NONE, Work, innermost_selected
from analyzers.traces.launches import Intervals, blocking
from analyzers.traces.model import AllToAll, Collective
from analyzers.traces.reading.numbering import combined_codes, factorize, rows_by_value
from analyzers.traces.reading.trace import NO_STEP, OPS, PEER_COPY

# Collectives that end on all ranks at nearly the same moment, and on none before the last rank has arrived.
SYMMETRIC = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier", re.IGNORECASE)
_GATHERS = re.compile(r"all_?gather", re.IGNORECASE)
_REDUCES_AND_GATHERS = re.compile(r"all_?reduce", re.IGNORECASE)
_ELEMENT_BYTES = {
    "double": 8, "float": 4, "half": 2, "bfloat16": 2, "long": 8, "int": 4, "short": 2, "byte": 1, "char": 1, "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "long int": 8, "c10::bfloat16": 2, "c10::half": 2,
}  # fmt: skip
UNKNOWN = -1


class Labels(NamedTuple):
    """The texts of many items, such as the names of collectives, each distinct text stored once.

    Item `i` has the text `texts[code[i]]`.
    """

    code: Column
    texts: list[str]

    def each(self) -> list[str]:
        return [self.texts[i] for i in self.code.tolist()]


@dataclass(frozen=True)
class RankCollectives:
    """The collectives of one device or host in order of time; every array has an entry per collective.

    Sends and receives count as collectives here.
    """

    work: Work

    @cached_property
    def indices(self) -> Integers:
        indices = np.flatnonzero(self.work.kind == COMMUNICATION)
        return indices[np.argsort(self.work.start[indices], kind="stable")]

    @cached_property
    def blocking(self) -> Intervals:
        """The intervals of exposed communication (without overlapping computing) that delayed other work."""
        return blocking(self.work)

    @property
    def rows(self) -> Column:
        """For each collective, the trace row of its event."""
        return self.work.rows[self.indices]

    @cached_property
    def entry(self) -> Integers:
        """For each collective, the index of its arguments in the `collective_` columns of the trace, or NONE.

        The arguments (such as the process group) are recorded with the collective's own event, or with the operator
        that launched it.
        """
        c = self.work.trace.columns
        described = c["collective_row"].astype(np.int64)
        entry = np.full(len(c["start"]), NONE)
        entry[described] = np.arange(len(described))
        operators = (entry >= 0) & self.work.trace.category_matches(OPS)
        around = innermost_selected(operators, c["parent"])
        launch = self.work.launch[self.indices]
        operator = np.where(launch >= 0, around[launch], NONE)
        # Kineto copies the arguments to the kernel, or leaves them with the operator that launches it alone.
        return np.where(entry[self.rows] >= 0, entry[self.rows], np.where(operator >= 0, entry[operator], NONE))

    def recorded(self, name: str) -> Integers:
        values = self.work.trace.columns[f"collective_{name}"]
        return np.where(self.entry >= 0, values[self.entry], UNKNOWN) if len(values) else self.entry

    @cached_property
    def name(self) -> Labels:
        """The recorded name of each collective; if there is none, the name of its kernel or annotation."""
        recorded = self.recorded("name")
        return self.labels(np.where(recorded >= 0, recorded, self.work.trace.columns["name"][self.rows]))

    @cached_property
    def is_copy(self) -> Mask:
        return np.array([PEER_COPY.search(name) is not None for name in self.name.texts], bool)[self.name.code]

    @cached_property
    def group(self) -> Labels:
        """The name of each collective's process group; empty if it was not recorded."""
        return self.labels(self.recorded("group"))

    @cached_property
    def dtype(self) -> Labels:
        recorded = self.labels(self.recorded("dtype"))
        if not self.host_shapes:
            return recorded
        of_shapes = [self.host_shapes.get(row, (0, ""))[1] for row in self.rows.tolist()]
        texts = [text or own for text, own in zip(recorded.each(), of_shapes, strict=True)]
        number = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        return Labels(np.array([number[text] for text in texts], np.int64), list(number))

    @cached_property
    def descriptions(self) -> dict[str, str]:
        """The job's description of each process group that the trace lists, such as `mesh_tp`, by the group's name."""
        return {group["name"]: group["desc"] for group in self.work.trace.header.get("groups", [])}

    def labels(self, numbers: Column) -> Labels:
        """Return the texts with these indices in `trace.names` as `Labels`.

        A negative index stands for an empty text.
        """
        values, code = factorize(numbers)
        return Labels(code, [self.work.trace.names[i] if i >= 0 else "" for i in values.tolist()])

    @cached_property
    def members(self) -> Integers:
        """For each collective, the number of ranks in its process group.

        The number comes from the trace's list of process groups, else from the collective's arguments. If neither has
        it, the number of ranks of the job is used.
        """
        header = self.work.trace.header
        size = {group["name"]: len(group["ranks"]) for group in header.get("groups", [])}
        listed = np.array([size.get(group, 0) for group in self.group.texts], np.int64)[self.group.code]
        recorded = self.recorded("members")
        return np.where(listed > 0, listed, np.where(recorded > 0, recorded, header.get("world_size") or 1))

    @cached_property
    def sizes(self) -> Integers:
        """For each collective, the number of elements in the larger of this rank's two buffers (input and output).

        The value is UNKNOWN if neither the number nor the shapes of the inputs were recorded.
        """
        recorded = np.maximum(self.recorded("elements"), self.recorded("elements_out"))
        if not self.host_shapes:
            return np.where(recorded > 0, recorded, UNKNOWN)
        shaped = np.array([self.host_shapes.get(row, (UNKNOWN, ""))[0] for row in self.rows.tolist()], np.int64)
        # On a host only the input is recorded, of which an all_gather makes as many as there are ranks.
        gathers = np.array([_GATHERS.search(name) is not None for name in self.name.texts], bool)[self.name.code]
        shaped *= np.where(gathers, self.members, 1)
        return np.where(recorded > 0, recorded, np.maximum(shaped, UNKNOWN))

    @cached_property
    def host_shapes(self) -> dict[int, tuple[int, str]]:
        """{trace row of a collective on the host: (number of elements, data type) of its input}.

        Collectives whose shapes were not recorded are left out; the dictionary is empty for a device.
        """
        if self.work.device is not None:
            return {}
        c = self.work.trace.columns
        mine = np.flatnonzero(np.isin(c["shape_row"], self.rows))
        pairs = zip(c["shape_row"][mine].tolist(), c["shape_text"][mine].tolist(), strict=True)
        return {row: _first_input(c.meta["shapes"][text]) for row, text in pairs}

    def step(self) -> Integers:
        index = self.work.step()[self.indices]
        numbers = np.array([number for number, _, _ in self.work.trace.steps] or [NO_STEP], np.int64)
        return np.where(index == NO_STEP, NO_STEP, numbers[index])


def _first_input(shapes: str) -> tuple[int, str]:
    """Return (number of elements, data type) of an operator's first input.

    `shapes` is the trace's text of the operator's input shapes. The result is (UNKNOWN, "") if the text is malformed.
    """
    dims, types, _ = f"{shapes}\0\0".split("\0")[:3]
    try:
        size = int(np.prod(msgspec.json.decode(dims)[0], dtype=np.int64))
        return size, str(msgspec.json.decode(types)[0])
    except (msgspec.DecodeError, IndexError, TypeError, ValueError, KeyError):
        return UNKNOWN, ""


def collective_totals(collectives: RankCollectives) -> list[Collective]:
    """Return the collectives grouped by name, process group, data type and size, with counts, times and bandwidth.

    The group with most time comes first.
    """
    names = collectives.name, collectives.group, collectives.dtype
    kind = combined_codes(*(labels.code for labels in names), collectives.members, collectives.sizes)
    c = collectives.work.trace.columns
    duration = c["end"][collectives.rows] - c["start"][collectives.rows]
    totals = [_totals_of(collectives, int(same[0]), np.sort(duration[same])) for _, same in rows_by_value(kind)]
    return sorted(totals, key=lambda total: (-total.total_ns, total.name, total.bytes))


def _totals_of(collectives: RankCollectives, index: int, durations: Column) -> Collective:
    """Return the totals of collectives that have the same name, process group, data type and size.

    `index` is the index of one of them in `collectives`; `durations` has the duration of each of them in ns,
    ascending.
    """
    labels = collectives.name, collectives.group, collectives.dtype
    name, group, dtype = (label.texts[label.code[index]] for label in labels)
    members, size = int(collectives.members[index]), max(int(collectives.sizes[index]), 0) * element_bytes(dtype)
    # The shortest one waited least: in the others the time until the last rank arrives counts as well.
    speed = size / int(durations[0]) * 1e9 if durations[0] else 0.0
    return Collective(
        name=name,
        group=group,
        group_desc=collectives.descriptions.get(group, ""),
        group_size=members,
        dtype=dtype,
        bytes=size,
        count=len(durations),
        total_ns=int(durations.sum()),
        median_ns=int(durations[len(durations) // 2]),
        min_ns=int(durations[0]),
        algorithm_bytes_per_s=round(speed),
        bus_bytes_per_s=round(speed * bus_factor(name, members)),
    )


def element_bytes(dtype: str) -> int:
    """Return the bytes of one element of a data type, named as recorders do (`Float`, `c10::BFloat16`); 0: unknown."""
    return _ELEMENT_BYTES.get(dtype.lower(), 0)


def bus_factor(name: str, members: int) -> float:
    """Return the bus bandwidth of a collective divided by its algorithm bandwidth, as nccl-tests defines them.

    The algorithm bandwidth is the size of the buffer divided by the time; the bus bandwidth counts the bytes that
    cross a link, and can be compared with the links' bandwidth for any number of ranks. With n members the factor is
    2 (n - 1) / n for an all_reduce, (n - 1) / n for all_gather, reduce_scatter and all_to_all, and 1 for others
    (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md). Example: 8 ranks that all_reduce 1 GB in 10 ms have an
    algorithm bandwidth of 100 GB/s and a bus bandwidth of 175 GB/s.
    """
    if not SYMMETRIC.search(name) or members < 1:
        return 1.0
    return (2 if _REDUCES_AND_GATHERS.search(name) else 1) * (members - 1) / members


_ALL_TO_ALL = re.compile(r"all_?to_?all", re.IGNORECASE)
_SPLIT_AT_MOST = 1 << 31
# Stands for splits that were recorded but cannot be used: they fit no group.
_NO_SPLITS: list[object] = [None]


def all_to_alls(collectives: RankCollectives) -> list[AllToAll]:
    """Return, for each process group with all-to-alls, how many bytes this rank sends to each member in total.

    The group with most bytes sent comes first. Calls are left out if their recorded split sizes are truncated or do not
    fit the group.
    """
    names = [_ALL_TO_ALL.search(name) is not None for name in collectives.name.texts]
    is_all_to_all = np.array(names, bool)[collectives.name.code]
    elements, splits = collectives.recorded("elements"), collectives.recorded("splits")
    rows = np.flatnonzero(is_all_to_all & (elements >= 0) & (splits >= 0))
    kind = combined_codes(collectives.group.code, collectives.members, collectives.dtype.code, elements, splits)
    totals: dict[str, tuple[int, Integers]] = {}
    for _, same in rows_by_value(kind[rows]):
        row = int(rows[same[0]])
        size = int(elements[row]) * element_bytes(collectives.dtype.texts[collectives.dtype.code[row]])
        sent = split_bytes(size, collectives.work.trace.names[splits[row]], int(collectives.members[row]))
        group = collectives.group.texts[collectives.group.code[row]]
        count, before = totals.get(group, (0, np.zeros_like(sent)))
        if len(sent) and len(sent) == len(before):
            totals[group] = count + len(same), before + len(same) * sent
    rows_of_groups = [
        AllToAll(
            group=group,
            group_desc=collectives.descriptions.get(group, ""),
            count=count,
            ranks=ranks_of(collectives, group, len(sent)),
            sent_bytes=sent.tolist(),
        )
        for group, (count, sent) in totals.items()
    ]
    return sorted(rows_of_groups, key=lambda row: (-sum(row.sent_bytes), row.group))


def split_bytes(size: int, text: str, members: int) -> Integers:
    """Return `size` bytes divided among `members` in proportion to the split sizes in a text (evenly if it is empty).

    The result is an empty array if the number of split sizes is not `members`. Example: 600 bytes by "[1, 2, 3]" among
    3 members give 100, 200 and 300 bytes.
    """
    splits = _decoded_splits(text) or [1] * members
    numbers = [split for split in splits if isinstance(split, int) and 0 <= split < _SPLIT_AT_MOST]
    if len(numbers) != len(splits) or len(numbers) != members or not sum(numbers):
        return np.zeros(0, np.int64)
    return np.array([size * split // sum(numbers) for split in numbers], np.int64)


def _decoded_splits(text: str) -> list[object]:
    """Return the split sizes in a text; an empty list if the text is empty, which means that the data is split evenly.

    The result is `_NO_SPLITS` if the text cannot be decoded; recorders truncate long lists.
    """
    # Recorders write the list as a text, and cut a long one after 30 entries: what is left is no JSON.
    with suppress(msgspec.DecodeError):
        splits = msgspec.json.decode(text)
        splits = msgspec.json.decode(splits) if isinstance(splits, str) else splits
        return splits if isinstance(splits, list) else _NO_SPLITS
    return _NO_SPLITS if text else []


def ranks_of(collectives: RankCollectives, group: str, members: int) -> list[int]:
    """Return the ranks of the process group named `group`, which has `members` ranks; empty if they are not known."""
    header = collectives.work.trace.header
    listed = {row["name"]: row["ranks"] for row in header.get("groups", [])}
    ranks = listed.get(group, [])
    if len(ranks) == members:
        return list(ranks)
    # As many members as the job has ranks: the group can only be all of them.
    return list(range(members)) if members >= (header.get("world_size") or 1) else []
