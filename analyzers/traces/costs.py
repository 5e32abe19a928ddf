"""Compute the cost of operators, modules, annotations and source lines: the time of all kernels launched inside them.

Example: nn.Module Linear_3 calls aten::linear, which calls aten::addmm, which launches a kernel of 70 µs. The cost of
each of the three is 70 µs and one kernel, although only aten::addmm launched the kernel directly.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from analyzers.columns import Column, Integers, Mask
from analyzers.frames import is_library
from analyzers.traces.columns import NONE, Work, inclusive_sums, innermost_selected, is_outermost, self_times
from analyzers.traces.flops import Formulas, decoded_inputs
from analyzers.traces.model import Cost, LaunchedKernel, OperatorShape
from analyzers.traces.reading.numbering import combined_codes, factorize, sums_by_code
from analyzers.traces.reading.trace import OPS, PROFILER_STEP, Trace

MODULE = re.compile(r"^nn\.Module: ")
SOURCE = re.compile(r"\.pyx?\(\d+\): ")
_COSTS_AT_MOST = 100


def is_user_function(name: str) -> bool:
    """Return whether a Python event, such as `train.py(12): step`, is a function in a file that the user wrote."""
    position = SOURCE.search(name)
    return position is not None and not is_library(name[: position.start()] + ".py")


@dataclass(frozen=True)
class Attribution:
    """The host's events (operators, modules ...) and the kernels and copies of a device that were launched inside them.

    `what` in the methods is the kind of host event: "operator", "annotation", "module" or "line" (a function in the
    user's own files).
    """

    work: Work
    _around: dict[str, Column] = field(default_factory=dict)
    _masks: dict[str, Mask] = field(default_factory=dict)

    @property
    def trace(self) -> Trace:
        return self.work.trace

    @cached_property
    def inside(self) -> tuple[Column, Column]:
        """For each event of the trace, the total time (ns) and the number of the kernels launched inside it.

        The result is two arrays; both are all 0 if no device worked.
        """
        # On a host events launch themselves, and nothing on a device.
        linked = self.work.linked & (self.work.device is not None)
        launch, parent = self.work.launch[linked], self.trace.columns["parent"]
        count = inclusive_sums(launch, np.ones_like(launch), parent).astype(np.int32)
        return inclusive_sums(launch, self.work.own[linked], parent), count

    def by_name(self, what: str, formulas: Formulas | None = None) -> list[Cost]:
        """Return the cost of each operator, annotation, module or line (`what`) by name, the most expensive first.

        The time of a call that is nested in another call of the same name counts once. If `formulas` is given, the
        number of floating-point operations is added.
        """
        c, rows = self.trace.columns, np.flatnonzero(self.is_a(what))
        start, end = c["start"][rows], c["end"][rows]
        names, which = factorize(c["name"][rows])
        outer = is_outermost(combined_codes(c["lane"][rows], which), start, end)
        own = self_times(self.outer_index(what, rows), start, end)
        spent, count = self.inside
        outside, outer_name = rows[outer], which[outer]
        sums = (
            np.bincount(which, minlength=len(names)),
            sums_by_code(outer_name, (end - start)[outer], len(names)),
            sums_by_code(which, own, len(names)),
            sums_by_code(outer_name, spent[outside], len(names)),
            sums_by_code(outer_name, count[outside], len(names)),
        )
        costs = [
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
        return sorted(costs, key=lambda cost: (-cost.device_ns, -cost.own_ns, cost.name))[:_COSTS_AT_MOST]

    def is_a(self, what: str) -> Mask:
        """Return a mask of the events of the trace that are of kind `what`; callers must not change the mask."""
        if what not in self._masks:
            self._masks[what] = self.mask_of(what)
        return self._masks[what]

    def mask_of(self, what: str) -> Mask:
        """Compute the mask that `is_a` returns."""
        if what == "operator":
            return self.trace.category_matches(OPS) & ~self.trace.name_matches(PROFILER_STEP)
        if what == "annotation":
            return self.trace.category_matches({"user_annotation"})
        functions = self.trace.category_matches({"python_function"})
        if what == "module":
            return functions & self.trace.name_matches(MODULE)
        own = np.array([is_user_function(name) for name in self.trace.names] or [False])
        return np.asarray(functions & own[self.trace.columns["name"]])

    def around(self, what: str) -> Column:
        """Return, for each event of the trace, the row of the innermost event of kind `what` around it, or NONE.

        An event that is itself of this kind gets its own row.
        """
        if what not in self._around:
            selected = self.is_a(what)
            # One number that stands for all rows takes no memory, and most traces have no modules or lines.
            nowhere = np.broadcast_to(np.int32(NONE), selected.shape)
            parent = self.trace.columns["parent"]
            self._around[what] = innermost_selected(selected, parent) if selected.any() else nowhere
        return self._around[what]

    def outer_index(self, what: str, rows: Column) -> Integers:
        """Return, for each of `rows`, the index in `rows` of the innermost other event that encloses it, or NONE."""
        parent = self.trace.columns["parent"][rows]
        outer = np.where(parent >= 0, self.around(what)[parent], NONE)
        return np.where(outer >= 0, np.searchsorted(rows, outer), NONE)

    def pairs(self, what: str) -> tuple[Column, Column, Column, Column]:
        """Group the kernels by kernel name and launching code; return the time and the number of kernels of each group.

        `what` is the kind of the launching code ("operator", "module" ...); kernels launched outside of any such code
        are left out. The result is four columns with a row per group, in ascending order of time: the index of the
        kernel's name in `trace.names`, the index of the launching code's name in `trace.names`, the time of the kernels
        in ns, and their number. The columns are empty if no device worked.
        """
        c = self.trace.columns
        if self.work.device is None:
            return (np.zeros(0, np.int64),) * 4
        around = self.around(what)[self.work.launch]
        known = self.work.linked & (around != NONE)
        # Both numbers in one, so that pairs are grouped as single numbers are.
        key = c["name"][self.work.rows[known]].astype(np.int64) * len(self.trace.names) + c["name"][around[known]]
        keys, which = factorize(key)
        times = np.bincount(which, minlength=len(keys))
        spent = sums_by_code(which, self.work.own[known], len(keys))
        order = np.argsort(spent, kind="stable")
        kernel, source = np.divmod(keys[order], max(1, len(self.trace.names)))
        return kernel, source, spent[order], times[order]

    def sources(self, what: str) -> dict[int, str]:
        """Return {kernel: the operator, module or line (`what`) that launched most of the kernel's time}.

        The keys are indices of kernel names in `trace.names`.
        """
        kernels, sources, _, _ = self.pairs(what)
        last = np.full(len(self.trace.names), NONE)
        # Pairs come with the longest last, and of several values written to one element numpy keeps the last.
        last[kernels] = sources
        known = np.flatnonzero(last != NONE)
        return {kernel: self.trace.names[last[kernel]] for kernel in known.tolist()}

    def launched_kernels(self) -> list[LaunchedKernel]:
        """Return the number and time of each kernel that each operator launched directly, most time first."""
        longest = [column[::-1][:_COSTS_AT_MOST].tolist() for column in self.pairs("operator")]
        names = self.trace.names
        return [
            LaunchedKernel(operator=names[operator], kernel=names[kernel], count=times, total_ns=spent)
            for kernel, operator, spent, times in zip(*longest, strict=True)
        ]

    def operators(self, formulas: Formulas) -> list[Cost]:
        return self.by_name("operator", formulas)

    def annotations(self) -> list[Cost]:
        return self.by_name("annotation")

    def lines(self) -> list[Cost]:
        """Return the cost of each function in the user's own files.

        The name of a function includes the line at which it begins.
        """
        return self.by_name("line")

    def modules(self) -> list[Cost]:
        """Return the cost of each module by name, its backward kernels included.

        A backward operator has the same autograd sequence number as its forward operator, which shows the module.
        """
        forward, extra = self.by_name("module"), self.backward_of_modules()
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

    def backward_of_modules(self) -> dict[str, tuple[int, int]]:
        """Return {module: (time in ns, number) of the kernels of its backward operators}, its submodules included.

        Autograd gives a forward operator and its backward the same sequence number. The backward is attributed to all
        modules around the forward operator.
        """
        c, module = self.trace.columns, self.around("module")
        if not self.is_a("module").any():
            return {}
        rows, sequence, thread = (c[f"autograd_{name}"] for name in ("row", "sequence", "thread"))
        # Only backward operators name the thread of their forward.
        forward, backward = rows[thread <= 0], rows[thread > 0]
        pairs = zip(sequence[thread <= 0].tolist(), forward.tolist(), strict=True)
        forward_of = {key: row for key, row in pairs if module[row] >= 0}
        spent, count = self.inside
        totals: dict[str, tuple[int, int]] = {}
        outer = ~self.is_within(backward)
        for row, key in zip(backward[outer].tolist(), sequence[thread > 0][outer].tolist(), strict=True):
            for name in self.modules_around(module, forward_of.get(key, NONE)):
                before = totals.get(name, (0, 0))
                totals[name] = before[0] + int(spent[row]), before[1] + int(count[row])
        return totals

    def is_within(self, rows: Column) -> Mask:
        """Return, for each of the trace rows `rows`, whether the event of another row in `rows` encloses it."""
        selected = np.zeros(len(self.trace.columns["start"]), bool)
        selected[rows] = True
        parent = self.trace.columns["parent"]
        return np.where(parent >= 0, innermost_selected(selected, parent)[parent], NONE)[rows] >= 0

    def modules_around(self, module: Column, row: int) -> set[str]:
        """Return the names of all modules around the event in trace row `row`, including a module in this row itself.

        `module` has, for each event of the trace, the row of the innermost module around it.
        """
        parent, names = self.trace.columns["parent"], set()
        at = int(module[row]) if row >= 0 else NONE
        while at >= 0:
            names.add(self.trace.names[self.trace.columns["name"][at]])
            above = int(parent[at])
            at = int(module[above]) if above >= 0 else NONE
        return names


_SHAPES_AT_MOST = 50
_TEXT_AT_MOST = 200


def operator_shapes(attribution: Attribution, formulas: Formulas) -> list[OperatorShape]:
    """Return the time of operators by name and input sizes, the most time first; empty if no shapes were recorded."""
    c, names = attribution.trace.columns, attribution.trace.names
    rows, texts = c["shape_row"].astype(np.int64), c["shape_text"].astype(np.int64)
    spent = _direct_time(attribution)[rows]
    rows, texts, spent = rows[spent > 0], texts[spent > 0], spent[spent > 0]
    if not len(rows):
        return []
    # Shape and name in one number, so that pairs are grouped as single numbers are.
    keys, code = factorize(texts * len(names) + c["name"][rows])
    counted_rows, operations, moved = formulas.rows
    count, total = np.bincount(code), sums_by_code(code, spent, len(keys))
    flops, size = (
        sums_by_code(code, of_rows(len(c["start"]), counted_rows, values)[rows], len(keys))
        for values in (operations, moved)
    )
    shapes = []
    for i in np.argsort(-total, kind="stable")[:_SHAPES_AT_MOST].tolist():
        text, name = divmod(int(keys[i]), len(names))
        shapes.append(
            OperatorShape(
                name=names[name],
                shapes=_readable_shapes(c.meta["shapes"][text]),
                count=int(count[i]),
                total_ns=int(total[i]),
                flops=int(flops[i]),
                flops_per_s=round(int(flops[i]) / int(total[i]) * 1e9),
                bound=formulas.bound(int(flops[i]), int(size[i])),
            )
        )
    return shapes


def of_rows(size: int, rows: Integers, values: Integers) -> Integers:
    column = np.zeros(size, np.int64)
    column[rows] = values
    return column


def _direct_time(attribution: Attribution) -> Integers:
    """Return, for each event of the trace, the time (ns) of the kernels that it launched directly.

    Kernels launched by operators inside the event are not counted. If no device worked, the result is each event's time
    without the events inside it.
    """
    work, c = attribution.work, attribution.trace.columns
    spent = np.zeros(len(c["start"]), np.int64)
    if work.device is None:
        spent[work.rows] = work.own
        return spent
    around = attribution.around("operator")[work.launch]
    known = work.linked & (around != NONE)
    np.add.at(spent, around[known], work.own[known])
    return spent


def _readable_shapes(shapes: str) -> str:
    """Return sizes and types of an operator's inputs, such as `[4096, 64] c10::BFloat16, [64] float`.

    Inputs without a size are left out.
    """
    sizes, types, _ = decoded_inputs(shapes)
    kinds = [str(kind) for kind in types]
    texts = [f"{size} {kind}" for size, kind in zip(sizes, kinds + [""] * len(sizes), strict=False) if size]
    return ", ".join(text.strip() for text in texts)[:_TEXT_AT_MOST]
