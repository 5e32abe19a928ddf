"""Records of a step log -> steps, one record at a time: our own lines, and torchtitan's structured logs."""

import math
from collections.abc import Iterable
from typing import Any

SPANS = {
    "fetching_batch": "data_wait",
    "fwd_bwd": "fwd_bwd",
    "optim": "optim",
    "collect_dist_metrics": "loss_sync",
    "gc_collect": "gc",
    "checkpoint_save": "ckpt_save",
    "eval": "eval",
    "kineto_profiler_step_call": "profiler",
    "memory_profiler_step_call": "snapshot",
}
"""torchtitan's spans under our names of phases."""
TAGS = {"checkpoint_save": "checkpoint"}
LARGEST = 1 << 62

Row = dict[str, Any]


class Own:
    """Our JSONL: a header, then a line a step. A restart in the same file begins with a header again."""

    def __init__(self) -> None:
        self.header: Row = {}

    def feed(self, row: Row) -> Row | None:
        """The step that this record ends, if it ends one."""
        if "schema" in row:
            self.header = row
            return None
        return row if isinstance(row.get("step"), int) else None


class Structured:
    """The log of torchtitan: spans that end carry their duration in ms, and the one of the step comes last."""

    def __init__(self) -> None:
        self.header: Row = {}
        self.last: Row = {}
        self._open: Row = {}

    def feed(self, row: Row) -> Row | None:
        """The step that this record ends, if it ends one. A step that ends without `optim` is one the data cut off."""
        self.header = self.header or structured_header(row)
        self.last = row
        if not isinstance(row.get("step"), int):
            return None
        if self._open.get("step") != row["step"]:
            self._open = {"step": row["step"], "phases": {}, "tags": [], "first_us": row.get("time_us")}
        take_event(self._open, row)
        if "dur_ns" not in self._open:
            return None
        step, self._open = self._open, {}
        return finished(step) if "optim" in step["phases"] else None


def is_structured(lines: Iterable[bytes]) -> bool:
    """Whether the first lines of a log are torchtitan's."""
    return any(b'"log_type_name"' in line for line in lines)


def structured_header(row: Row) -> Row:
    """Who wrote a record of torchtitan's."""
    return {
        "rank": row.get("global_rank", row.get("rank")),
        "local_rank": row.get("local_rank"),
        "host": row.get("host_name"),
        "pid": row.get("pid"),
        "started_ns": whole(row.get("time_us")) * 1000,
    }


def take_event(into: Row, row: Row) -> None:
    """Add one record to its step."""
    event = str(row.get("log_type_name", ""))
    name = event.removesuffix("_end")
    if event == "metric_value" and row.get("event_name") == "local_valid_tokens":
        into["tokens"] = whole(row.get("value"))
    elif event == "step_end":
        into["dur_ns"] = nanoseconds(row.get("value"))
        tags = row.get("step_tags")
        into["tags"] = [TAGS.get(str(tag), str(tag)) for tag in tags] if isinstance(tags, list) else []
    elif event.endswith("_end") and name in SPANS:
        into["phases"][SPANS[name]] = into["phases"].get(SPANS[name], 0) + nanoseconds(row.get("value"))


def finished(row: Row) -> Row:
    """A step with what the log leaves to its reader."""
    row["start_ns"] = whole(row.get("first_us")) * 1000
    row["residual_ns"] = row["dur_ns"] - sum(row["phases"].values())
    return row


def nanoseconds(milliseconds: Any) -> int:
    value = number(milliseconds)
    return int(value * 1e6) if math.isfinite(value) and abs(value) < 1e12 else 0


def number(value: Any) -> float:
    """A float; NaN for what is none."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def whole(value: Any) -> int:
    """A number that fits a column; 0 for what is none."""
    return max(-LARGEST, min(LARGEST, value)) if isinstance(value, int) else 0
