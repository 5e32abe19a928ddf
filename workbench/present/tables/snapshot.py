"""Tables from the results of `analyzers.memory.views` for one snapshot: stacks, blocks, entries, reserved ranges."""

from typing import TYPE_CHECKING

from analyzers.memory.diff import Diff
from analyzers.words import size, size_change
from workbench.present.table import Table, table

if TYPE_CHECKING:
    import pandas as pd

BLOCKS, _CHANGES, STACKS = 500, 200, 50
NO_STACK = "no stack recorded"


def stack_list(frame: "pd.DataFrame") -> Table:
    """Return a table of the call stacks with the most live memory, each named by its innermost source line.

    `frame` is the result of `memory.views.top_stacks`.
    """
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
    """Return a table with a row per step: its highest memory, and the bytes that are live at its end.

    `frame` is the result of `memory.views.steps`.
    """
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
