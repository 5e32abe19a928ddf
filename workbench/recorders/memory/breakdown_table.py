"""The table of what holds a rank's memory, out of one of its snapshots. The rows are called as in the snapshot."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from workbench.recorders.memory.tensor_hooks import COMMUNICATION, TEMPORARY, UNKNOWN

Tensor = tuple[str, str, int]
"""(category, name, bytes)."""
MIB = 1 << 20
NAMED, TOP = 3, 10


class Moments(NamedTuple):
    """What lived at the highest moment, and the most that each category held at any."""

    peak: list[Tensor]
    highest: Counter[str]


def table(snapshot: dict[str, Any]) -> str:
    """Categories at the peak with their largest tensors, high-water marks, the largest tensors, used and tracked."""
    peak, highest = moments(snapshot)
    total = sum(size for _, _, size in peak)
    lines = [f"Memory by category at the peak of {total / MIB:.1f} MiB:"]
    lines += [f"  {line}" for line in by_category(peak)]
    lines += ["High-water marks of what comes and goes:"]
    lines += [f"  {name:<34}{highest[name] / MIB:>10.1f} MiB" for name in (TEMPORARY, COMMUNICATION) if highest[name]]
    lines += ["Largest tensors:"]
    lines += [f"  {name:<34}{size / MIB:>10.1f} MiB  {category}" for category, name, size in peak[:TOP]]
    return "\n".join([*lines, *used(snapshot)])


def moments(snapshot: dict[str, Any]) -> Moments:
    """Replay the trace from what lived before it, once to find the peak and once more up to it."""
    held: Counter[str] = Counter()
    for category, _, size in dict(first(snapshot)).values():
        held[category] += size
    highest, best, place = Counter(held), held.total(), 0
    for number, (change, _) in enumerate(replayed(snapshot), start=1):
        held.update(change)
        highest |= held
        if held.total() > best:
            best, place = held.total(), number
    live = dict(first(snapshot))
    for _, live in islice(replayed(snapshot), place):  # noqa: B007 - the last one is wanted
        pass
    return Moments(sorted(live.values(), key=lambda tensor: -tensor[2]), highest)


def replayed(snapshot: dict[str, Any]) -> Iterator[tuple[dict[str, int], dict[int, Tensor]]]:
    """After each entry (the bytes that it changes, by category; what lives)."""
    live = dict(first(snapshot))
    for entry in snapshot["device_traces"][0]:
        change: dict[str, int] = {}
        if entry["action"] == "alloc":
            tensor = (entry.get("category", UNKNOWN), entry.get("user_metadata") or "(no name)", entry["size"])
            live[entry["addr"]] = tensor
            change = {tensor[0]: tensor[2]}
        elif entry["action"] == "free_completed" and (gone := live.pop(entry["addr"], None)):
            change = {gone[0]: -gone[2]}
        yield change, live


def first(snapshot: dict[str, Any]) -> Iterator[tuple[int, Tensor]]:
    """(address, tensor) of what lived before the trace began: never allocated in it, or freed before it was."""
    older: dict[int, list[str]] = snapshot["workbench"]["blocks"]
    begun = set()
    for entry in snapshot["device_traces"][0]:
        address = entry.get("addr", 0)
        if entry["action"] == "free_completed" and address not in begun:
            yield address, (*named(older, address), entry["size"])
        if entry["action"] in ("alloc", "free_completed"):
            begun.add(address)
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated" and block["address"] not in begun:
                yield block["address"], (*named(older, block["address"]), block["requested_size"])


def named(older: dict[int, list[str]], address: int) -> tuple[str, str]:
    category, label = older.get(address, [UNKNOWN, "(no name)"])
    return category, label


def by_category(peak: list[Tensor]) -> Iterator[str]:
    """A line a category, the largest first."""
    sums: Counter[str] = Counter()
    names: dict[str, dict[str, None]] = {}
    for category, name, size in peak:
        sums[category] += size
        names.setdefault(category, {})[name] = None
    for category, size in sums.most_common():
        yield f"{category:<20}{size / MIB:>10.1f} MiB  {', '.join(list(names[category])[:NAMED])}"


def used(snapshot: dict[str, Any]) -> Iterator[str]:
    """What the device or the process uses, beside what the allocator or the tensors account for."""
    ours = snapshot["workbench"]
    tracked = sum(segment["allocated_size"] for segment in snapshot["segments"])
    of, total = "process", ours.get("process_bytes")
    if "device_used_bytes" in ours:
        of, total = "device", ours["device_used_bytes"]
        tracked = sum(segment["total_size"] for segment in snapshot["segments"])
    if total:
        yield f"Used by the {of}: {total / MIB:.1f} MiB, tracked {tracked / MIB:.1f} MiB,"
        yield f"  untracked {(total - tracked) / MIB:.1f} MiB (context, libraries, fragmentation)"
