"""What operators, modules, annotations and lines of source cost: the kernels launched inside them are theirs."""

import re
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from analyzers.columns import Column
from analyzers.frames import is_library
from analyzers.traces.answers.flops import Formulas
from analyzers.traces.columns.nesting import NONE, inclusive_sums, innermost_selected, is_outermost, self_times
from analyzers.traces.columns.work import Work
from analyzers.traces.model import OPS, PROFILER_STEP, Trace
from analyzers.traces.reading.distinct import combined_codes, factorize, sums_by_code
from analyzers.traces.structs import Cost, LaunchedKernel

MODULE = re.compile(r"^nn\.Module: ")
SOURCE = re.compile(r"\.pyx?\(\d+\): ")
COSTS_AT_MOST = 100


def is_user_function(name: str) -> bool:
    """Return whether the name of a Python event, such as `train.py(12): step`, is of a file that the user wrote."""
    place = SOURCE.search(name)
    return place is not None and not is_library(name[: place.start()] + ".py")


@dataclass(frozen=True)
class Attribution:
    """Which event of the host each piece of work is due to."""

    work: Work
    _around: dict[str, Column] = field(default_factory=dict)

    @property
    def trace(self) -> Trace:
        return self.work.trace

    @cached_property
    def inside(self) -> tuple[Column, Column]:
        """For each event of the trace the device time (ns) and the number of kernels launched by it and inside it."""
        # On a host events launch themselves, and no device.
        linked = self.work.linked & (self.work.device is not None)
        launch, parent = self.work.launch[linked], self.trace.columns["parent"]
        count = inclusive_sums(launch, np.ones_like(launch), parent).astype(np.int32)
        return inclusive_sums(launch, self.work.own[linked], parent), count

    def by_name(self, what: str, formulas: Formulas | None = None) -> list[Cost]:
        """The events that `chosen` tells by their name; those inside one of the same name count once."""
        c, rows = self.trace.columns, np.flatnonzero(self.chosen(what))
        start, end = c["start"][rows], c["end"][rows]
        names, which = factorize(c["name"][rows])
        outer = is_outermost(combined_codes(c["lane"][rows], which), start, end)
        own = self_times(self.inner(what, rows), start, end)
        spent, count = self.inside
        outside, outer_name = rows[outer], which[outer]
        sums = (
            np.bincount(which, minlength=len(names)),
            sums_by_code(outer_name, (end - start)[outer], len(names)),
            sums_by_code(which, own, len(names)),
            sums_by_code(outer_name, spent[outside], len(names)),
            sums_by_code(outer_name, count[outside], len(names)),
        )
        found = [
            Cost(
                name=self.trace.names[name],
                count=times,
                host_ns=host,
                own_ns=alone,
                device_ns=device,
                kernels=launched,
                **(formulas.of_name(name) if formulas else {}),
            )
            for name, times, host, alone, device, launched in zip(
                names.tolist(), *(column.tolist() for column in sums), strict=True
            )
        ]
        return sorted(found, key=lambda cost: (-cost.device_ns, -cost.own_ns, cost.name))[:COSTS_AT_MOST]

    def chosen(self, what: str) -> Column:
        """Which events are an `operator`, an `annotation`, a `module`, or a function of the user's own (`line`)."""
        if what == "operator":
            return self.trace.category_matches(OPS) & ~self.trace.name_matches(PROFILER_STEP)
        if what == "annotation":
            return self.trace.category_matches({"user_annotation"})
        functions = self.trace.category_matches({"python_function"})
        if what == "module":
            return functions & self.trace.name_matches(MODULE)
        own = np.array([is_user_function(name) for name in self.trace.names] or [False])
        found: Column = functions & own[self.trace.columns["name"]]
        return found

    def around(self, what: str) -> Column:
        """The row of the innermost of what `chosen` tells around each event, itself included."""
        if what not in self._around:
            chosen = self.chosen(what)
            nowhere = np.broadcast_to(np.int32(NONE), chosen.shape)
            self._around[what] = innermost_selected(chosen, self.trace.columns["parent"]) if chosen.any() else nowhere
        return self._around[what]

    def inner(self, what: str, rows: Column) -> Column:
        """For each of the rows that `chosen` tells the place among them of the innermost one strictly around it."""
        parent = self.trace.columns["parent"][rows]
        outer = np.where(parent >= 0, self.around(what)[parent], NONE)
        return np.where(outer >= 0, np.searchsorted(rows, outer), NONE)

    def pairs(self, what: str) -> tuple[Column, Column, Column, Column]:
        """(number of the kernel's name, of its source's name, ns, times), the longest last; sources as in `chosen`."""
        c = self.trace.columns
        if self.work.device is None:
            return (np.zeros(0, np.int64),) * 4
        around = self.around(what)[self.work.launch]
        known = self.work.linked & (around != NONE)
        key = c["name"][self.work.rows[known]].astype(np.int64) * len(self.trace.names) + c["name"][around[known]]
        keys, which = factorize(key)
        times = np.bincount(which, minlength=len(keys))
        spent = sums_by_code(which, self.work.own[known], len(keys))
        order = np.argsort(spent, kind="stable")
        kernel, source = np.divmod(keys[order], max(1, len(self.trace.names)))
        return kernel, source, spent[order], times[order]

    def sources(self, what: str) -> dict[int, str]:
        """For the number of each kernel's name the operator, module or line that launched most of its time."""
        kernel, source, _, _ = self.pairs(what)
        return {one: self.trace.names[by] for one, by in zip(kernel.tolist(), source.tolist(), strict=True)}

    def launched(self) -> list[LaunchedKernel]:
        """Which kernels each operator launched, those of most time first."""
        longest = [column[::-1][:COSTS_AT_MOST].tolist() for column in self.pairs("operator")]
        names = self.trace.names
        return [
            LaunchedKernel(operator=names[by], kernel=names[one], count=times, total_ns=spent)
            for one, by, spent, times in zip(*longest, strict=True)
        ]

    def operators(self, formulas: Formulas) -> list[Cost]:
        return self.by_name("operator", formulas)

    def annotations(self) -> list[Cost]:
        return self.by_name("annotation")

    def lines(self) -> list[Cost]:
        """Functions of the user's own files, each with the line that it begins at."""
        return self.by_name("line")

    def modules(self) -> list[Cost]:
        """Modules, with the kernels of their backward operators where sequence numbers tell whose these are."""
        forward, extra = self.by_name("module"), self.backward()
        return sorted(
            [
                Cost(
                    name=cost.name.removeprefix("nn.Module: "),
                    count=cost.count,
                    host_ns=cost.host_ns,
                    own_ns=cost.own_ns,
                    device_ns=cost.device_ns + extra.get(cost.name, (0, 0))[0],
                    kernels=cost.kernels + extra.get(cost.name, (0, 0))[1],
                )
                for cost in forward
            ],
            key=lambda cost: (-cost.device_ns, -cost.host_ns, cost.name),
        )

    def backward(self) -> dict[str, tuple[int, int]]:
        """(device ns, kernels) of the backward operators of each module and of those around it."""
        c = self.trace.columns
        rows, sequence, thread = (c[f"autograd_{name}"] for name in ("row", "sequence", "thread"))
        ahead, behind = rows[thread <= 0], rows[thread > 0]
        module = self.around("module")
        pairs = zip(sequence[thread <= 0].tolist(), ahead.tolist(), strict=True)
        of_sequence = {key: row for key, row in pairs if module[row] >= 0}
        spent, count = self.inside
        found: dict[str, tuple[int, int]] = {}
        outermost = ~self.within(behind)
        for row, key in zip(behind[outermost].tolist(), sequence[thread > 0][outermost].tolist(), strict=True):
            for name in self.modules_around(module, of_sequence.get(key, NONE)):
                before = found.get(name, (0, 0))
                found[name] = before[0] + int(spent[row]), before[1] + int(count[row])
        return found

    def within(self, rows: Column) -> Column:
        """Which of the rows lie inside another of them."""
        chosen = np.zeros(len(self.trace.columns["start"]), bool)
        chosen[rows] = True
        parent = self.trace.columns["parent"]
        return above(innermost_selected(chosen, parent), parent)[rows] >= 0

    def modules_around(self, module: Column, row: int) -> set[str]:
        """The names of all modules around a row."""
        parent, found = self.trace.columns["parent"], set()
        at = int(module[row]) if row >= 0 else NONE
        while at >= 0:
            found.add(self.trace.names[self.trace.columns["name"][at]])
            above = int(parent[at])
            at = int(module[above]) if above >= 0 else NONE
        return found


def above(around: Column, parent: Column) -> Column:
    """The row of what is strictly around each event, from what is around it or itself."""
    return np.where(parent >= 0, around[parent], NONE)
