"""What was looked up of a snapshot, as tables."""

import pandas as pd

from analyzers.memory.diff import Diff
from analyzers.words import share, size
from workbench.present.table import Table, table

BLOCKS, CHANGES, STACKS = 500, 200, 50
NO_STACK = "no stack recorded"


def stacks(frame: pd.DataFrame) -> Table:
    """The largest stacks (`memory.views.top_stacks`)."""
    columns = (frame[name] for name in ("bytes", "count", "category", "label", "frames"))
    rows = (
        (size(held), blocks, category, label or "-", next(iter(frames), NO_STACK))
        for held, blocks, category, label, frames in zip(*columns, strict=True)
    )
    return table("", "bytes> | blocks> | category | of | innermost line", rows, STACKS)


def block_list(state: pd.DataFrame) -> tuple[Table, list[int]]:
    """The largest blocks of a state (`memory.views.state`), and their addresses."""
    largest = state.nlargest(BLOCKS, "requested", keep="first")
    columns = (largest[name] for name in ("requested", "address", "category", "label", "frame"))
    rows = [
        (size(held), f"{address:#x}", category, label or "-", frame or NO_STACK)
        for held, address, category, label, frame in zip(*columns, strict=True)
    ]
    heads = "bytes> | address | category | of | innermost line"
    return table("", heads, rows, BLOCKS), [int(address) for address in largest["address"]]


def life(frame: pd.DataFrame, title: str = "") -> Table:
    """Every block that held an address (`memory.views.life`), in order of time."""
    columns = (frame[name] for name in ("born", "died", "address", "requested", "category", "label", "frames"))
    rows = (
        (born, died, f"{address:#x}", size(held), category, label or "-", next(iter(frames), NO_STACK))
        for born, died, address, held, category, label, frames in zip(*columns, strict=True)
    )
    heads = "from entry> | to entry> | block | bytes> | category | of | allocated at"
    return table(title, heads, rows, BLOCKS)


def found(blocks: pd.DataFrame, limit: int) -> Table:
    """The blocks that fit what is sought. An address finds all that were ever there: its life."""
    columns = (blocks[name] for name in ("address", "requested", "born", "died", "category", "frame"))
    rows = ((f"{at:#x}", size(requested), *rest) for at, requested, *rest in zip(*columns, strict=True))
    return table("Blocks found", "address | bytes> | from entry> | to entry> | category | line", rows, limit)


def by_category(frame: pd.DataFrame) -> Table:
    """What is alive at an instant (`memory.views.categories`), the largest first."""
    some = frame[frame["bytes"] > 0].sort_values("bytes", ascending=False, kind="stable")
    whole = some["bytes"].sum()
    columns = (some[name].tolist() for name in ("category", "bytes", "blocks"))
    rows = ((kind, size(held), share(held, whole), blocks) for kind, held, blocks in zip(*columns, strict=True))
    return table("Alive by category", "category | bytes> | share> | blocks>", rows)


def by_step(frame: pd.DataFrame) -> Table:
    """The peak and the end of each step (`memory.views.steps`)."""
    columns = (frame[name] for name in ("step", "peak_bytes", "peak_index", "end_bytes"))
    rows = ((step, size(peak), at, size(end)) for step, peak, at, end in zip(*columns, strict=True))
    return table("Memory by step", "step> | peak> | at entry> | at the end>", rows)


def changes(found: Diff) -> Table:
    """What changed between two instants, by module; without what stayed the same."""
    rows = (
        (signed(one.bytes), size(one.a_bytes), size(one.b_bytes), one.b_blocks - one.a_blocks, one.state, one.what)
        for one in found.modules
        if one.state != "same"
    )
    return table("", "change> | before> | now> | blocks> | state | of", rows, CHANGES)


def signed(count: int) -> str:
    return f"{'+' if count > 0 else '-'}{size(abs(count))}"


def reserved(ranges: pd.DataFrame) -> Table:
    """When ranges were reserved and given back (`memory.views.cached`), the largest first."""
    columns = ["address", "bytes", "stream", "pool", "expandable", "born", "died"]
    rows = (
        (f"{address:#x}", size(held), stream, pool, "yes" if expandable else "no", born, died)
        for address, held, stream, pool, expandable, born, died in ranges[columns].itertuples(index=False)
    )
    return table("Reserved ranges", "address | bytes> | stream> | pool | expandable | from entry> | to entry>", rows)


def entries(events: pd.DataFrame) -> Table:
    """Entries as the allocator wrote them (`memory.views.events`); of a failed request the address is what was left."""
    columns = ("entry", "action", "bytes", "address", "stream", "pool", "category", "label", "frame")
    rows = (
        (entry, action, size(held), f"{address:#x}", stream, pool, category or "-", label or "-", frame or NO_STACK)
        for entry, action, held, address, stream, pool, category, label, frame in events[list(columns)].itertuples(
            index=False
        )
    )
    heads = "entry> | action | bytes> | address | stream> | pool | category | of | innermost line"
    return table("Entries", heads, rows, BLOCKS)
