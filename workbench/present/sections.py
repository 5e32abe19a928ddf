"""The numbers behind a verdict as small tables of text, which every document and face lays out in its own way.

A room is imported by the tables that ask it something, so that a report of one room waits for no other.
"""

from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any

from analyzers.report import Report
from analyzers.words import duration, duration_ns, rank_ranges, share, size, source_line
from workbench.present.table import Table, table
from workbench.present.tables.comparison import comparison
from workbench.present.tables.memory_breakdown import further
from workbench.present.tables.trace import trace

BAR, BROKEN = "|", "¦"
"""What parts the heads of a table, and what stands for it in a name that comes from a file."""


def sections(report: Report[Any]) -> list[Table]:
    """The tables of a report, most telling first, without empty ones."""
    room = report.schema.removeprefix("workbench.").partition("/")[0]
    found = OF_ROOM[room](report.data) if room in OF_ROOM else []
    return [section for section in found if section.rows]


def memory(data: Any) -> list[Table]:
    from analyzers.memory.answers.across_ranks import latest

    devices = data.devices
    if data.breakdown or data.what_if:
        return further(data)
    return [
        table(
            "Memory by rank and device",
            f"{'file' if nameless(devices) else 'rank>'} | device> | step> | entries> | start> | peak> | end>"
            " | reserved> | replay",
            (
                (
                    PurePath(d.path).name if nameless(devices) else d.rank,
                    d.device,
                    d.step,
                    d.entries,
                    size(d.start_allocated_bytes),
                    size(d.peak_allocated_bytes),
                    size(d.end_allocated_bytes),
                    None if d.fragmentation.made_up_segments else size(d.reserved_bytes),
                    "exact" if d.consistent else "does not end at the state",
                )
                for d in devices
            ),
        ),
        *(held for d in worst_first(latest(devices))[:2] for held in kinds_held(d, whose(d, devices))),
        *(stacks(d, whose(d, devices)) for d in worst_first(latest(devices))[:1]),
    ]


def nameless(devices: list[Any]) -> bool:
    """Whether only the files' names tell the devices apart."""
    return len({d.path for d in devices}) > 1 and all(d.rank is None for d in devices)


def whose(device: Any, devices: list[Any]) -> str:
    """What a heading adds to tell of which device it is."""
    if device.rank is not None:
        return f", rank {device.rank}"
    return f", {PurePath(device.path).name}" if nameless(devices) else ""


def worst_first(devices: list[Any]) -> list[Any]:
    """Devices that ran out of memory first, then by peak."""
    return sorted(devices, key=lambda d: (d.oom is None, -d.peak_allocated_bytes))


def kinds_held(device: Any, whose: str) -> Iterator[Table]:
    """Who holds what at the peak; where an allocation failed at another instant, at that one first."""
    if device.oom and device.oom.index != device.peak_index:
        yield categories(device.oom.categories, f"Who held what when it failed{whose}, {after(device.oom.index)}")
    yield categories(device.categories, f"Who holds the peak{whose}, {after(device.peak_index)}")


def after(entry: int) -> str:
    return f"after entry {entry}" if entry >= 0 else "before the first entry"


def categories(held: dict[str, int], title: str) -> Table:
    """Allocated bytes by category, and their sum."""
    total = sum(held.values())
    largest = sorted(held.items(), key=lambda item: -item[1])
    rows = [(name, size(count), share(count, total)) for name, count in [*largest, ("allocated", total)] if count]
    return table(title, "category | bytes> | share>", rows)


def stacks(device: Any, whose: str) -> Table:
    rows = (
        (size(s.bytes), s.count, s.category, s.frames[0] if s.frames else "no stack recorded")
        for s in device.top_stacks
    )
    return table(f"Largest stacks at the peak{whose}", "bytes> | blocks> | category | innermost line", rows, 8)


def device_name(device: Any) -> str:
    """`rank 1, device 0, after step 5, out of memory`, as far as known; what failed is a step never finished."""
    rank = [f"rank {device.rank}"] if device.rank is not None else []
    when = "after step" if device.oom else "step"
    step = [f"{when} {device.step}"] if device.step is not None else []
    failed = ["out of memory"] if device.oom else []
    return ", ".join([*rank, f"device {device.device}", *step, *failed])


def hang(data: Any) -> list[Table]:
    names = {group.name: group.desc or group.name for group in data.groups}
    return [
        table(
            "Culprits",
            "ranks | class | group | seq> | operation | line | victims",
            (
                (
                    rank_ranges(c.ranks),
                    classes(c),
                    c.group_desc or c.group,
                    c.seq,
                    c.operation,
                    first(c.frames),
                    rank_ranges(c.victims),
                )
                for c in data.culprits
            ),
        ),
        table(
            "Who waits for whom",
            "rank> | waits for | group | seq>",
            (
                (w.rank, rank_ranges(w.waits_for) or "nobody: all have come", names.get(w.group, w.group), w.seq)
                for w in data.waits
            ),
        ),
        table("Groups", "name | description | ranks", ((g.name, g.desc, rank_ranges(g.ranks)) for g in data.groups), 6),
    ]


def classes(culprit: Any) -> str:
    return str(culprit.kind).replace("_", " ")


def first(frames: list[Any]) -> str:
    """`file:line function` of the innermost frame that is the user's own."""
    from analyzers.hangs.model import user_frame

    frame = user_frame(frames)
    return f"{source_line(frame.filename, frame.line)} {frame.name}" if frame else "-"


def steps(data: Any) -> list[Table]:
    names = sorted({phase for r in data.ranks for phase in r.phases})
    shown = sorted(names, key=lambda n: -max(r.phases.get(n, 0.0) for r in data.ranks))[:6]
    rows = (
        (r.rank, r.steps, duration(r.median_step_s), *(duration(r.phases.get(n)) for n in shown)) for r in data.ranks
    )
    heads = " | ".join(["rank>", "steps>", "step>", *(f"{n.replace(BAR, BROKEN)}>" for n in shown)])
    return [
        table(
            "Stragglers",
            "rank> | late by> | in share of steps> | cause | pattern | lost a step>",
            map(straggler, data.stragglers),
        ),
        table("Median step by rank", heads, rows),
        table("Where the wall time went", "part | time> | share>", wall_time(data.goodput)),
        table(
            "Changes of the step time",
            "from step> | before> | after> | how | phase that changed most",
            ((c.step, duration(c.before_s), duration(c.after_s), c.kind, most_changed(c)) for c in data.changes),
        ),
        table(
            "Steps that do more than train",
            "tag | steps> | step>",
            ((tag, one.steps, duration(one.median_step_s)) for tag, one in data.tagged.items()),
        ),
        table(
            "Loss and gradient norm",
            "step> | what | before> | value> | over at>",
            ((e.step, e.kind.replace("_", " "), number(e.before), number(e.value), e.until) for e in data.events),
        ),
    ]


def straggler(found: Any) -> tuple[Any, ...]:
    often = share(found.recurrence, 1)
    return found.rank, duration(found.lateness_s), often, found.cause, found.pattern, duration(found.lost_s)


def wall_time(goodput: Any) -> list[tuple[Any, ...]]:
    """The parts, the largest first."""
    parts = sorted(goodput.parts.items(), key=lambda item: -item[1]) if goodput else []
    return [(name, duration_ns(ns), share(ns, goodput.wall_ns)) for name, ns in parts]


def most_changed(change: Any) -> str:
    """`bwd +12 ms`."""
    if not change.phases:
        return "-"
    name = max(change.phases, key=lambda phase: abs(change.phases[phase]))
    return f"{name} {'+' if change.phases[name] >= 0 else '-'}{duration(abs(change.phases[name]))}"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def incident(data: Any) -> list[Table]:
    """The chain, then the rooms that it rests on; of a run without incident the first table of each room."""
    chain = table("What led to what", "# | event", ((i, link.text) for i, link in enumerate(data.chain, 1)))
    rooms: dict[str, tuple[Callable[[Any], list[Table]], Any]] = {
        "memory": (memory, data.memory),
        "hang": (hang, data.hang),
        "steps": (steps, data.steps),
        "trace": (trace, data.trace),
    }
    told = {name.partition(".")[0] for link in data.chain for name in link.findings}
    return [
        chain,
        *(t for name, (build, part) in rooms.items() if part is not None and name in told for t in build(part)[:3]),
        *(t for build, part in rooms.values() if part is not None and not told for t in build(part)[:1]),
    ]


def estimate(data: Any) -> list[Table]:
    """What a rank will hold, by category and by the moment of a step."""
    fullest = max(data.ranks, key=lambda r: r.peak_bytes)
    held = sorted(fullest.categories.items(), key=lambda item: -item[1])
    return [
        table(
            "Peak by rank",
            "ranks | like> | peak> | in",
            ((f"from {r.first_rank}", r.count, size(r.peak_bytes), r.peak_window) for r in data.ranks),
        ),
        table(
            "Who holds the peak",
            "category | bytes> | share>",
            ((name, size(count), share(count, fullest.peak_bytes)) for name, count in held if count),
        ),
        table(
            "Highest moment of each window (layers from the first: +0, from the last: -1)",
            "window | bytes> | of the peak>",
            ((name, size(count), share(count, fullest.peak_bytes)) for name, count in fullest.windows.items()),
            20,
        ),
        table("Instead", "setting | peak>", ((o.setting, size(o.peak_bytes)) for o in data.options)),
    ]


def tokens(data: Any) -> list[Table]:
    rows = ((r.sequence, r.position, r.token, r.text, r.label, r.label_text) for r in data.rows)
    return [table("Tokens and labels", "sequence> | position> | token> | reads | label> | reads", rows, 64)]


OF_ROOM: dict[str, Callable[[Any], list[Table]]] = {
    "memory": memory,
    "hang": hang,
    "trace": trace,
    "steps": steps,
    "incident": incident,
    "compare": comparison,
    "estimate": estimate,
    "tokens": tokens,
}
