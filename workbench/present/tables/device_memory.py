"""A table of the parts of a device's used memory: tensors, the allocator's cache, and memory outside the allocator."""

from collections.abc import Sequence

from analyzers.device_memory import HOLDER_WORDS, MemoryPart, source_words, untracked
from analyzers.words import share, size
from workbench.present.table import Table, table


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
