"""Tables of a memory report: each device's peak, its categories, and the stacks that allocated most."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from analyzers.device_memory import HOLDER_WORDS, MemoryPart, source_words, untracked
from analyzers.memory import latest
from analyzers.memory.diff import Diff
from analyzers.memory.model import Activations, Breakdown, Device, MemoryData, MissingEvidence, WhatIf
from analyzers.words import percent_change, share, size, size_change
from workbench.present.table import Table, table

if TYPE_CHECKING:
    import pandas as pd

GROUPINGS = ("module", "line", "stack", "category")
"""What a tree of live memory can be grouped by."""


def _requested_tables(data: MemoryData) -> list[Table]:
    # The fullest rank is the one that runs out first; the others follow in --json.
    fullest = sorted(data.breakdown, key=lambda device: -device.peak_bytes)[:1]
    return [*what_if(data.what_if), *(part for device in fullest for part in breakdown(device))]


def what_if(answers: Sequence[WhatIf]) -> list[Table]:
    """Return tables of the peaks estimated for changed settings, and of the model behind each estimate."""
    if not answers:
        return []
    fullest = max(answers, key=lambda answer: answer.new_peak_bytes)
    return [
        _new_peaks(answers, ", ".join(f"{change.name}={change.value}" for change in fullest.changes)),
        new_categories(fullest),
        table(
            "Models behind the estimates",
            "change | model",
            ((f"{c.name}={c.value}", c.model) for c in fullest.changes),
        ),
    ]


def _new_peaks(answers: Sequence[WhatIf], settings: str) -> Table:
    """Return a table of each device's current peak and its estimated peak with `settings`, highest estimate first."""
    rows = (
        (
            answer.rank,
            answer.device,
            answer.step,
            size(answer.peak_bytes),
            size(answer.new_peak_bytes),
            percent_change(answer.peak_bytes, answer.new_peak_bytes),
        )
        for answer in sorted(answers, key=lambda answer: -answer.new_peak_bytes)
    )
    return table(f"What if {settings}", "rank> | device> | step> | peak now> | estimated peak> | change>", rows)


def new_categories(answer: WhatIf) -> Table:
    now, later = answer.categories, answer.new_categories
    names = sorted(later, key=lambda name: -max(now[name], later[name]))
    rows = ((name, size(now[name]), size(later[name])) for name in names if now[name] or later[name])
    return table("Memory by category at the estimated peak", "category | now> | estimated>", rows)


def breakdown(device: Breakdown) -> list[Table]:
    """Return the breakdown tables of one device of a snapshot."""
    suffix = f", rank {device.rank}" if device.rank is not None else ""
    return [
        table(
            f"Allocator segments{suffix}",
            "kind | segments> | reserved> | allocated> | free>",
            (
                (s.kind, s.segments, size(s.reserved_bytes), size(s.allocated_bytes), size(s.free_bytes))
                for s in device.segments
            ),
        ),
        table(
            f"Memory by category at the peak of {size(device.peak_bytes)}{suffix}",
            "category | bytes> | share> | tensors> | largest tensors",
            (
                (h.name, size(h.bytes), share(h.bytes, device.peak_bytes), h.tensors, ", ".join(h.largest))
                for h in device.categories
            ),
        ),
        table(
            "Highest use of short-lived categories",
            "category | bytes> | after entry>",
            ((h.name, size(h.bytes), h.entry) for h in device.high_water),
        ),
        table(
            "Largest tensors",
            "tensor | bytes> | category",
            ((t.name, size(t.bytes), t.category) for t in device.tensors),
            20,
        ),
        *model(device.activations),
        *overhead(device),
    ]


def model(activations: Activations) -> list[Table]:
    """Return tables of the model's shape and of each layer's activations, compared with a formula."""
    job, formula = activations.job, activations.theoretical_bytes_per_layer
    # The formula needs the number of layers, which a run of another trainer may not record.
    whole = formula * job.layers if job and job.layers and formula else None
    shape = [
        ("model", job.name), ("hidden size", job.dim), ("intermediate size", job.hidden_dim), ("layers", job.layers),
        ("heads", job.heads), ("batch", job.batch), ("sequence length", job.seq),
        ("activation checkpointing", job.checkpointing),
        ("activations of one layer by the formula", size(formula)),
        ("activations of all layers by the formula", size(whole)),
    ] if job else []  # fmt: skip
    rows = (
        (layer.layer, size(layer.bytes), share(layer.bytes, formula) if formula else None)
        for layer in activations.layers
    )
    return [
        table("Model", "setting | value", shape),
        table("Activations of each layer at the peak", "layer | measured> | share of the formula>", rows, 8),
    ]


def overhead(device: Breakdown) -> list[Table]:
    """Return a table of used device memory inside and outside the allocator; empty if it was not recorded."""
    account = device.overhead
    if account is None:
        return []
    rows = [
        (f"used by the {account.of}", size(account.used_bytes), ""),
        ("tracked", size(account.tracked_bytes), share(account.tracked_bytes, account.used_bytes)),
        ("untracked", size(account.untracked_bytes), share(account.untracked_bytes, account.used_bytes)),
    ]
    return [table(f"Memory in use at the end (untracked: {account.made_of})", "what | bytes> | share>", rows)]


def device_memory(parts: Sequence[MemoryPart], suffix: str = "") -> Table:
    """Return a table of the parts of a device's used memory: size, bounds of the size, and source of the number.

    The last row is all memory outside the allocator. If `parts` is empty, the table is empty too.
    """
    total = sum(part.bytes for part in parts)
    rows = [row(part, total) for part in parts]
    if parts:
        rows.append(("all outside of the allocator", size(untracked(parts)), share(untracked(parts), total), "", ""))
    return table(f"Memory of the whole device{suffix}", "what | bytes> | share> | between | source", rows)


def row(part: MemoryPart, total: int) -> tuple[object, ...]:
    """Return the cells of the row for one part of a device's memory; `total` is the memory of all parts in bytes.

    If the size of the part is exact, the cell with the lower and upper bound is empty.
    """
    low, high = size(part.low_bytes), size(part.high_bytes)
    between = f"{low} and {high}" if low != high else ""
    return HOLDER_WORDS[part.holder], size(part.bytes), share(part.bytes, total), between, source_words(part)


_DETAILED_DEVICES = 2
"""The number of devices whose categories are listed: the one that failed, and one to compare it with."""


def memory_tables(data: MemoryData) -> list[Table]:
    """Return the tables of a memory report.

    If the user asked for a breakdown of the peak or for a what-if estimate, return only the tables for these.
    """
    if data.breakdown or data.what_if:
        return _requested_tables(data)
    # Only the last snapshot of each rank is detailed: earlier ones are listed, but describe an earlier moment.
    devices, fullest = data.devices, worst_first(latest(data.devices))
    return [
        _device_list(devices),
        *(held for d in fullest[:_DETAILED_DEVICES] for held in category_tables(d, device_suffix(d, devices))),
        *(largest_stacks(d, device_suffix(d, devices)) for d in fullest[:1]),
        *(device_memory(d.account, device_suffix(d, devices)) for d in fullest[:1]),
    ]


def _device_list(devices: Sequence[Device]) -> Table:
    unnamed = _ranks_unknown(devices)
    rows = (
        (
            PurePath(d.path).name if unnamed else d.rank,
            d.device,
            d.step,
            d.entries,
            size(d.start_allocated_bytes),
            size(d.peak_allocated_bytes),
            size(d.end_allocated_bytes),
            # On a CPU the segments are computed, so nothing was really reserved.
            "" if d.fragmentation.made_up_segments else size(d.reserved_bytes),
            _replay_words(d),
        )
        for d in devices
    )
    heads = (
        f"{'file' if unnamed else 'rank>'} | device> | step> | entries> | start> | peak> | end> | reserved> | replay"
    )
    return table("Memory by rank and device", heads, rows)


def _replay_words(device: Device) -> str:
    if not device.consistent:
        return "does not match the final state"
    return "exceeds the segments" if device.exceeds_segments else "exact"


def _ranks_unknown(devices: Sequence[Device]) -> bool:
    return len({d.path for d in devices}) > 1 and all(d.rank is None for d in devices)


def device_suffix(device: Device, devices: Sequence[Device]) -> str:
    """Return the end of a table's title that names the device, such as `, rank 1`; empty if no name is needed."""
    if device.rank is not None:
        return f", rank {device.rank}"
    return f", {PurePath(device.path).name}" if _ranks_unknown(devices) else ""


def worst_first(devices: Sequence[Device]) -> list[Device]:
    return sorted(devices, key=lambda d: (d.oom is None, -d.peak_allocated_bytes))


def category_tables(device: Device, suffix: str) -> Iterator[Table]:
    """Yield tables of memory by category: at the failed allocation (unless it was the peak), and at the peak."""
    if device.oom and device.oom.index != device.peak_index:
        at = _entry_name(device.oom.index)
        yield categories(device.oom.categories, f"Memory by category at the failed allocation{suffix}, {at}")
    if MissingEvidence.HISTORY in device.missing:
        yield categories(device.categories, f"Memory by category when the snapshot was taken{suffix}")
    else:
        yield categories(device.categories, f"Memory by category at the peak{suffix}, {_entry_name(device.peak_index)}")


def _entry_name(entry: int) -> str:
    return f"after entry {entry}" if entry >= 0 else "before the first entry"


def categories(bytes_by_category: Mapping[str, int], title: str) -> Table:
    """Return a table of allocated bytes by category, largest first; the last row is their sum."""
    total = sum(bytes_by_category.values())
    largest = sorted(bytes_by_category.items(), key=lambda item: -item[1])
    rows = [(name, size(count), share(count, total)) for name, count in [*largest, ("allocated", total)] if count]
    return table(title, "category | bytes> | share>", rows)


def largest_stacks(device: Device, suffix: str) -> Table:
    rows = ((size(s.bytes), s.count, s.category, s.name) for s in device.top_stacks)
    when = "when the snapshot was taken" if MissingEvidence.HISTORY in device.missing else "at the peak"
    return table(f"Largest stacks {when}{suffix}", "bytes> | blocks> | category | source line", rows, 8)


def device_name(device: Device) -> str:
    """Return what is known about a device, such as `rank 1, device 0, after step 5, out of memory`.

    A snapshot taken at a failure has the number of the last finished step: the memory ran out in the next step.
    """
    rank = [f"rank {device.rank}"] if device.rank is not None else []
    when = "after step" if device.oom else "step"
    step = [f"{when} {device.step}"] if device.step is not None else []
    failed = ["out of memory"] if device.oom else []
    return ", ".join([*rank, f"device {device.device}", *step, *failed])


BLOCKS, _CHANGES, STACKS = 500, 200, 50
NO_STACK = "no stack recorded"


def stack_list(frame: "pd.DataFrame") -> Table:
    """Return a table of the call stacks with the most live memory, each named by its innermost source line."""
    columns = (frame[name] for name in ("bytes", "count", "category", "name"))
    rows = ((size(count), *rest) for count, *rest in zip(*columns, strict=True))
    return table("", "bytes> | blocks> | category | source line", rows, STACKS)


def block_list(state: "pd.DataFrame") -> tuple[Table, list[int]]:
    """Return a table of the largest live blocks, and the address of the block in each row.

    `state` is the result of `memory.views.live_blocks`.
    """
    # `keep="first"` makes the choice among equal sizes the same on every face.
    largest = state.nlargest(BLOCKS, "requested", keep="first")
    columns = (largest[name] for name in ("requested", "address", "category", "label", "frame"))
    rows = [
        (size(count), f"{address:#x}", category or "", label or "", frame or NO_STACK)
        for count, address, category, label, frame in zip(*columns, strict=True)
    ]
    heads = "bytes> | address | category | name | source line"
    return table("", heads, rows, BLOCKS), [int(address) for address in largest["address"]]


def block_history(frame: "pd.DataFrame", title: str = "") -> Table:
    """Return a table of every block that was allocated at one address, in the order of allocation.

    `frame` is the result of `memory.views.blocks_of_address`.
    """
    columns = (frame[name] for name in ("born", "died", "address", "requested", "category", "label", "frames"))
    rows = (
        (born, died, f"{address:#x}", size(count), category, label or "", next(iter(frames), NO_STACK))
        for born, died, address, count, category, label, frames in zip(*columns, strict=True)
    )
    heads = "allocated at entry> | freed at entry> | address | bytes> | category | name | source line"
    return table(title, heads, rows, BLOCKS)


def matching_blocks(blocks: "pd.DataFrame", limit: int) -> Table:
    """Return a table of the first `limit` rows of `blocks`, the blocks of memory that match a search."""
    columns = (blocks[name] for name in ("address", "requested", "born", "died", "category", "frame"))
    rows = ((f"{at:#x}", size(requested), *rest) for at, requested, *rest in zip(*columns, strict=True))
    heads = "address | bytes> | allocated at entry> | freed at entry> | category | source line"
    return table("Matching blocks", heads, rows, limit)


def step_peaks(frame: "pd.DataFrame") -> Table:
    columns = (frame[name] for name in ("step", "peak_bytes", "peak_index", "end_bytes"))
    rows = ((step, size(peak), at, size(end)) for step, peak, at, end in zip(*columns, strict=True))
    return table("Memory by step", "step> | peak> | peak at entry> | at the end>", rows)


def module_changes(diff: Diff) -> Table:
    """Return a table of the change of each module's memory between two instants; unchanged modules are left out."""
    rows = (
        (size_change(c.bytes), size(c.a_bytes), size(c.b_bytes), c.b_blocks - c.a_blocks, c.state, c.what)
        for c in diff.modules
        if c.state != "same"
    )
    return table("", "change> | before> | now> | blocks> | state | module", rows, _CHANGES)


def reserved_ranges(ranges: "pd.DataFrame", entries: int) -> Table:
    """Return a table of reserved address ranges, with the trace entries at which each was reserved and released.

    `ranges` is the result of `memory.views.reserved_ranges`, and `entries` the number of entries in the trace.
    """
    columns = ["address", "bytes", "stream", "pool", "expandable", "born", "died"]
    rows = (
        (f"{address:#x}", size(count), stream, pool, "yes" if expandable else "no", *ends(born, died, entries))
        for address, count, stream, pool, expandable, born, died in ranges[columns].itertuples(index=False)
    )
    heads = "address | bytes> | stream> | pool | expandable | reserved at entry> | returned at entry>"
    return table("Reserved ranges", heads, rows)


def ends(born: int, died: int, entries: int) -> tuple[object, object]:
    """Return the cells for the trace entries that reserved an address range (`born`) and released it (`died`).

    If this happened outside of the trace, the cell has words instead of a number: `before the trace` or `never`.
    `entries` is the number of entries in the trace.
    """
    return "before the trace" if born < 0 else born, "never" if died >= entries else died


def entry_list(events: "pd.DataFrame") -> Table:
    """Return a table of trace entries as the allocator recorded them; `events` is the result of `memory.views.events`.

    In an `oom` entry, the address column shows the free bytes of the device, because PyTorch stores them in this field.
    """
    columns = ["entry", "action", "bytes", "address", "stream", "pool", "category", "label", "frame"]
    rows = (
        (entry, action, size(count), f"{address:#x}", stream, pool, category or "", label or "", frame or NO_STACK)
        for entry, action, count, address, stream, pool, category, label, frame in events[columns].itertuples(
            index=False
        )
    )
    heads = "entry> | action | bytes> | address | stream> | pool | category | name | source line"
    return table("Trace entries", heads, rows, BLOCKS)
