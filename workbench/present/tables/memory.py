"""Tables of a memory report: each device's peak, its categories, and the stacks that allocated most."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from analyzers.memory import latest
from analyzers.memory.model import Device, MemoryData, MissingEvidence
from analyzers.words import share, size
from workbench.present.table import Table, table
from workbench.present.tables.device_memory import device_memory
from workbench.present.tables.memory_breakdown import requested_tables

_DETAILED_DEVICES = 2
"""The number of devices whose categories are listed: the one that failed, and one to compare it with."""


def memory_tables(data: MemoryData) -> list[Table]:
    """Return the tables of a memory report.

    If the user asked for a breakdown of the peak or for a what-if estimate, return only the tables for these.
    """
    if data.breakdown or data.what_if:
        return requested_tables(data)
    # Only the last snapshot of each rank is detailed: earlier ones are listed, but describe an earlier moment.
    devices, fullest = data.devices, worst_first(latest(data.devices))
    return [
        _device_list(devices),
        *(held for d in fullest[:_DETAILED_DEVICES] for held in category_tables(d, device_suffix(d, devices))),
        *(largest_stacks(d, device_suffix(d, devices)) for d in fullest[:1]),
        *(device_memory(d.account, device_suffix(d, devices)) for d in fullest[:1]),
    ]


def _device_list(devices: Sequence[Device]) -> Table:
    """Return a table with a row for each device of each snapshot."""
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
    """Return how well the allocation history of a device fits the state that its snapshot lists."""
    if not device.consistent:
        return "does not match the final state"
    return "exceeds the segments" if device.exceeds_segments else "exact"


def _ranks_unknown(devices: Sequence[Device]) -> bool:
    """Return whether several snapshots have no rank number; then tables name devices by their files."""
    return len({d.path for d in devices}) > 1 and all(d.rank is None for d in devices)


def device_suffix(device: Device, devices: Sequence[Device]) -> str:
    """Return the end of a table's title that names the device, such as `, rank 1`; empty if no name is needed."""
    if device.rank is not None:
        return f", rank {device.rank}"
    return f", {PurePath(device.path).name}" if _ranks_unknown(devices) else ""


def worst_first(devices: Sequence[Device]) -> list[Device]:
    """Return the devices, sorted: first those that ran out of memory, then the others by peak, highest first."""
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
    """Return an instant of a snapshot's trace in words, such as `after entry 5`; -1 is `before the first entry`."""
    return f"after entry {entry}" if entry >= 0 else "before the first entry"


def categories(bytes_by_category: Mapping[str, int], title: str) -> Table:
    """Return a table of allocated bytes by category, largest first; the last row is their sum."""
    total = sum(bytes_by_category.values())
    largest = sorted(bytes_by_category.items(), key=lambda item: -item[1])
    rows = [(name, size(count), share(count, total)) for name, count in [*largest, ("allocated", total)] if count]
    return table(title, "category | bytes> | share>", rows)


def largest_stacks(device: Device, suffix: str) -> Table:
    """Return a table of the call stacks that allocated most of the memory that is live at the peak."""
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
