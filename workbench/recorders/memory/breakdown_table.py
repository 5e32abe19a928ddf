"""Make a console table of what uses a rank's memory, from a memory snapshot of the rank."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from workbench.recorders.memory.snapshot import Snapshot
from workbench.recorders.memory.tensor_hooks import COMMUNICATION, TEMPORARY, UNKNOWN

Tensor = tuple[str, str, int]
"""A live tensor as (category, name, size in bytes)."""
MIB = 1 << 20
_TENSORS_PER_CATEGORY, _LARGEST_TENSORS = 3, 10


class Peaks(NamedTuple):
    """The result of `find_peaks`.

    `peak` has the tensors that are live when most memory is in use, largest first. `highest` is {category: most bytes
    at any time}; each category has its own peak.
    """

    peak: list[Tensor]
    highest: Counter[str]


def table(snapshot: Snapshot) -> str:
    """Return the memory breakdown of a snapshot as a text table.

    It lists the categories at the peak with their largest tensors, the highest temporary and communication memory, the
    largest tensors, and how much of the used memory is tracked.
    """
    peak, highest = find_peaks(snapshot)
    total = sum(size for _, _, size in peak)
    lines = [f"Memory by category at the peak of {total / MIB:.1f} MiB:"]
    lines += [f"  {line}" for line in _category_lines(peak)]
    lines += ["High-water marks of what comes and goes:"]
    lines += [f"  {name:<34}{highest[name] / MIB:>10.1f} MiB" for name in (TEMPORARY, COMMUNICATION) if highest[name]]
    lines += ["Largest tensors:"]
    lines += [f"  {name:<34}{size / MIB:>10.1f} MiB  {category}" for category, name, size in peak[:_LARGEST_TENSORS]]
    return "\n".join([*lines, *_usage_lines(snapshot)])


def find_peaks(snapshot: Snapshot) -> Peaks:
    """Return the tensors that are live at the memory peak of a snapshot, and the highest bytes of each category.

    The snapshot's trace of allocations and frees is replayed twice: once to find the peak, and once up to the peak.
    """
    live_bytes: Counter[str] = Counter()
    for category, _, size in dict(_initial_tensors(snapshot)).values():
        live_bytes[category] += size
    highest, peak_bytes, peak_position = Counter(live_bytes), live_bytes.total(), 0
    for position, (change, _) in enumerate(replay(snapshot), start=1):
        live_bytes.update(change)
        highest |= live_bytes
        if live_bytes.total() > peak_bytes:
            peak_bytes, peak_position = live_bytes.total(), position
    # A second replay takes less memory than a copy of the live blocks at every new peak.
    live = dict(_initial_tensors(snapshot))
    for _, live in islice(replay(snapshot), peak_position):  # noqa: B007 - the last one is wanted
        pass
    return Peaks(sorted(live.values(), key=lambda tensor: -tensor[2]), highest)


def replay(snapshot: Snapshot) -> Iterator[tuple[dict[str, int], dict[int, Tensor]]]:
    """Yield ({category: bytes allocated}, {address: live tensor}) for each entry of the snapshot's trace.

    The first dict has the bytes that the entry allocates; they are negative if it frees memory. The second dict is the
    state after the entry; the same object is updated and yielded each time.
    """
    live = dict(_initial_tensors(snapshot))
    for entry in snapshot["device_traces"][0]:
        change: dict[str, int] = {}
        if entry["action"] == "alloc":
            tensor = (entry.get("category", UNKNOWN), entry.get("user_metadata") or "(no name)", entry["size"])
            live[entry["addr"]] = tensor
            change = {tensor[0]: tensor[2]}
        elif entry["action"] == "free_completed" and (freed := live.pop(entry["addr"], None)):
            change = {freed[0]: -freed[2]}
        yield change, live


def _initial_tensors(snapshot: Snapshot) -> Iterator[tuple[int, Tensor]]:
    """Yield (address, tensor) of each tensor that was allocated before the trace begins.

    The trace has no allocation of such a tensor, but either frees it, or the snapshot lists it as live.
    """
    older_blocks: dict[int, list[str]] = snapshot["workbench"]["blocks"]
    allocated = set()
    for entry in snapshot["device_traces"][0]:
        address = entry.get("addr", 0)
        if entry["action"] == "free_completed" and address not in allocated:
            yield address, (*_category_and_label(older_blocks, address), entry["size"])
        if entry["action"] in ("alloc", "free_completed"):
            allocated.add(address)
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated" and block["address"] not in allocated:
                yield block["address"], (*_category_and_label(older_blocks, block["address"]), block["requested_size"])


def _category_and_label(older_blocks: dict[int, list[str]], address: int) -> tuple[str, str]:
    """Return (category, label) of the block at `address`; ("unknown", "(no name)") if `older_blocks` lacks it.

    `older_blocks` is {address: [category, label]} of blocks that were allocated before the trace begins.
    """
    category, label = older_blocks.get(address, [UNKNOWN, "(no name)"])
    return category, label


def _category_lines(peak: list[Tensor]) -> Iterator[str]:
    """Yield a line of text per category, largest first; `peak` has the tensors that are live at the peak."""
    sums: Counter[str] = Counter()
    names: dict[str, dict[str, None]] = {}
    for category, name, size in peak:
        sums[category] += size
        names.setdefault(category, {})[name] = None
    for category, size in sums.most_common():
        yield f"{category:<20}{size / MIB:>10.1f} MiB  {', '.join(list(names[category])[:_TENSORS_PER_CATEGORY])}"


def _usage_lines(snapshot: Snapshot) -> Iterator[str]:
    """Yield lines of text: the memory that the device or process uses, and how much of it the snapshot explains."""
    details = snapshot["workbench"]
    tracked = sum(segment["allocated_size"] for segment in snapshot["segments"])
    user_of_memory, total = "process", details.get("process_bytes")
    if "device_used_bytes" in details:
        user_of_memory, total = "device", details["device_used_bytes"]
        tracked = sum(segment["total_size"] for segment in snapshot["segments"])
    if total:
        yield f"Used by the {user_of_memory}: {total / MIB:.1f} MiB, tracked {tracked / MIB:.1f} MiB,"
        yield f"  untracked {(total - tracked) / MIB:.1f} MiB (context, libraries, fragmentation)"
