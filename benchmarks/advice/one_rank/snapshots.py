"""Cut a recording at the request that exceeds a limit, and write it as the recorder or as PyTorch alone would."""

from collections.abc import Iterator
from typing import Any

Raw = dict[str, Any]
GRAIN = 512


def older_blocks(raw: Raw) -> dict[int, tuple[int, list[Raw]]]:
    """Return {address: (bytes, frames)} of the blocks that are older than the trace."""
    older: dict[int, tuple[int, list[Raw]]] = {}
    seen: set[int] = set()
    for entry in raw["device_traces"][0]:
        if entry["action"] == "free_completed" and entry["addr"] not in seen:
            older[entry["addr"]] = entry["size"], []
        if entry["action"] in ("alloc", "free_completed"):
            seen.add(entry["addr"])
    for block in active_blocks(raw):
        if block["address"] not in seen:
            older[block["address"]] = block["requested_size"], block["frames"]
    return older


def active_blocks(raw: Raw) -> Iterator[Raw]:
    for segment in raw["segments"]:
        yield from (block for block in segment["blocks"] if block["state"] == "active_allocated")


def live_series(raw: Raw) -> list[int]:
    """Return the bytes that are live after each entry of the trace."""
    now, series = sum(size for size, _ in older_blocks(raw).values()), []
    for entry in raw["device_traces"][0]:
        now += {"alloc": entry["size"], "free_completed": -entry["size"]}.get(entry["action"], 0)
        series.append(now)
    return series


def cut(raw: Raw, end: int, peak: int) -> None:
    """Drop the trace from entry `end` on, and make the segments of the blocks that are then live.

    What was reserved beside them, up to `peak` bytes, is a free segment, as the allocator keeps what it once had.
    """
    live = older_blocks(raw)
    trace = raw["device_traces"][0]
    del trace[end:]
    for entry in trace:
        if entry["action"] == "alloc":
            live[entry["addr"]] = entry["size"], entry["frames"]
        elif entry["action"] == "free_completed":
            live.pop(entry["addr"], None)
    raw["segments"] = [segment_of(address, size, frames) for address, (size, frames) in sorted(live.items()) if size]
    if (cached := peak - sum(size for size, _ in live.values())) > 0:
        raw["segments"].append(segment_of(max(live, default=0) + (1 << 40), cached, [], state="inactive"))


def segment_of(address: int, size: int, frames: list[Raw], state: str = "active_allocated") -> Raw:
    """Return a segment with one block; a large tensor has its own segment on a device, too."""
    total = -(-size // GRAIN) * GRAIN
    block = {"address": address, "size": total, "requested_size": size, "state": state, "frames": frames}
    used = size if state != "inactive" else 0
    return {
        "device": 0, "address": address, "total_size": total, "allocated_size": used, "active_size": used,
        "requested_size": used, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False,
        "frames": [], "blocks": [block],
    }  # fmt: skip


def fail(raw: Raw, limit: int, start: int) -> None:
    """End the recording at the first request from entry `start` on that exceeds `limit` bytes; it fails."""
    series, trace = live_series(raw), raw["device_traces"][0]
    end = next(k for k in range(start, len(trace)) if series[k] > limit)
    failed = trace[end]
    cut(raw, end, series[end - 1])
    trace.append(
        {"action": "oom", "device_free": max(0, limit - series[end - 1]), "size": failed["size"], "stream": 0,
         "time_us": failed["time_us"], "frames": failed["frames"]}
    )  # fmt: skip
    raw["external_annotations"] = [n for n in raw["external_annotations"] if n["time_us"] <= failed["time_us"]]


def entry_of_step(raw: Raw, number: int, stage: str) -> int:
    """Return the number of the first entry after the START or END of a step."""
    marks = (n for n in raw["external_annotations"] if n["name"] == f"step#{number}" and n["stage"] == stage)
    # The recorder leaves out marks before the first entry.
    time = next((mark["time_us"] for mark in marks), 0)
    trace = raw["device_traces"][0]
    return next((k for k, entry in enumerate(trace) if entry["time_us"] >= time), len(trace))


def as_on_device(raw: Raw, total: int, used: int, process: int) -> None:
    """Make the recording of our recorder look as on a device of `total` bytes."""
    raw["workbench"] |= {
        "device": "cuda", "made_up_segments": False, "limit_bytes": total, "limit_name": None,
        "device_used_bytes": used, "device_process_bytes": process,
    }  # fmt: skip
