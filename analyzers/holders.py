"""Read what a recorder found to keep the tensors that each step leaves, and say it with the cure that fits.

The file is `rankR_holders.json` in the folder of a run's memory snapshots.
"""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from analyzers.files import read_json
from analyzers.words import bounded, number, quantity, size

FOLDER = "memory_snapshot"
HOW_TO_ASK = (
    "To see what keeps them, record again with `MemoryRecorder(..., find_holders=True)`, or with"
    " `workbench launch --find-holders -- COMMAND`."
)
_BYTES_AT_MOST, _HOLDERS_AT_MOST = 4 << 20, 20
_SHARE_AT_LEAST = 0.25
"""The share of a growth that a holder must explain to be named as what keeps it."""


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """An object that refers to tensors which each step leaves, such as a list that is appended to.

    `name` is how the script refers to it, such as `losses` or `Trainer.history`; `scope` says whether this is a `local`
    or `global` variable, an `attribute`, a variable of a `closure` or a `cache` of a function, and `where` names the
    function, module or class. `kind` is its type; `graph` stands for a single tensor whose autograd graph grows. `file`
    and `line` are where the name is first set, and `added_at` the lines that add to it. It had `first_length` entries
    (operations of the graph) at the end of step `first_step` and `length` at the end of `step`; `limit` is the number
    that it keeps at most. Its last tensor is described by `tensor`, with `tensor_bytes` of its own; `graph` is the node
    that computed it (empty: it has no graph), and `saved_bytes` what its graph keeps for a backward pass. `via` are the
    kinds of objects between it and the tensor.
    """

    name: str
    scope: str
    kind: str
    where: str = ""
    file: str = ""
    line: int = 0
    added_at: list[str] = []
    length: int
    first_length: int
    first_step: int
    step: int
    limit: int | None = None
    tensor: str = ""
    tensor_bytes: int = 0
    saved_bytes: int = 0
    graph: str = ""
    via: list[str] = []

    @property
    def bytes_per_step(self) -> float:
        """The bytes by which the tensors that it keeps grew per step."""
        grown, steps = self.length - self.first_length, max(1, self.step - self.first_step)
        if self.kind == "graph":
            return self.saved_bytes * grown / max(1, self.length) / steps
        return (self.tensor_bytes + self.saved_bytes) * grown / steps


def read_holders(folder: Path, rank: int | None) -> list[Holder] | None:
    """Return the holders in the file of a rank that still grew at the last examination, the largest growth first.

    The result is None if the recorder did not look for them, or if its file cannot be read.
    """
    path = folder / f"rank{rank or 0}_holders.json"
    try:
        if path.lstat().st_size > _BYTES_AT_MOST:
            return None
        content: Any = read_json(path)
        last = max(int(examined["step"]) for examined in content["examinations"])
        found = [msgspec.convert(each, Holder) for each in islice(content["holders"], _HOLDERS_AT_MOST)]
    except (OSError, ValueError, KeyError, TypeError, OverflowError, msgspec.ValidationError):
        return None
    growing = [holder for holder in found if holder.step == last and holder.length > holder.first_length]
    return sorted(growing, key=lambda holder: -holder.bytes_per_step)


def holder_of(holders: Sequence[Holder], bytes_per_step: float) -> Holder | None:
    """Return the holder that explains a growth; None if none of them keeps a considerable part of it."""
    largest = next(iter(holders), None)
    enough = _SHARE_AT_LEAST * bytes_per_step
    return largest if largest is not None and largest.bytes_per_step >= max(1.0, enough) else None


def what_keeps(holder: Holder) -> str:
    """Return a clause on what a holder is and where: ``losses` (a list of 320 tensors) in main (train.py:41)`."""
    place = f"{Path(holder.file).name}:{holder.line}" if holder.file and holder.line else Path(holder.file).name
    inside = f"{bounded(holder.where)}, " if holder.scope in ("local", "closure") and holder.where else ""
    return f"`{bounded(holder.name)}` ({_what(holder)}; {inside}{place})"


def _what(holder: Holder) -> str:
    if holder.kind == "graph":
        return f"a tensor with a graph of {quantity(holder.length, 'operation')}"
    if holder.kind == "lru_cache":
        return f"functools.lru_cache with {quantity(holder.length, 'result')}"
    if holder.kind in ("list", "dict", "set", "deque"):
        entries = quantity(holder.length, "entry" if holder.via or holder.kind == "dict" else "tensor")
        return f"a {holder.kind} of {entries}"
    return f"an object of the class {bounded(holder.kind)}"


def how_it_grew(holder: Holder) -> str:
    """Return sentences on how a holder grew, which lines add to it, and what its tensors keep."""
    what = "operations" if holder.kind == "graph" else "entries"
    text = (
        f"It grew from {number(holder.first_length)} to {number(holder.length)} {what} from step {holder.first_step} to"
        f" step {holder.step}"
    )
    text += f"; {', '.join(map(bounded, holder.added_at[:3]))} adds to it." if holder.added_at else "."
    if holder.kind != "graph" and holder.graph:
        saved = f", {size(holder.saved_bytes)} in the last one" if holder.saved_bytes else ""
        text += f" Its tensors keep their autograd graph ({bounded(holder.graph)}){saved}."
    if "exception" in holder.via or "traceback" in holder.via or "frame" in holder.via:
        text += " They are variables of functions that ended with an exception."
    return text


def cure(holder: Holder) -> str:
    """Return what to do about a holder, as an imperative."""
    name = f"`{bounded(holder.name)}`"
    at = f" ({bounded(holder.added_at[0])})" if holder.added_at else ""
    if holder.kind == "graph":
        return f"Add numbers or detached tensors to {name}: `loss.item()` or `.detach()` before each step adds to it."
    if {"exception", "traceback", "frame"} & {*holder.via}:
        return (
            f"Keep texts in {name}{at}, not exceptions: `traceback.format_exc()`, or `error.with_traceback(None)`; the"
            " traceback of an exception refers to all variables of the functions it left."
        )
    if "generator" in holder.via:
        return f"Close the generators in {name}{at} (`.close()`) or let them end, and drop those that are done."
    if holder.kind == "lru_cache":
        return f"Do not cache a function of tensors: bound {name} (`maxsize=`), or call its `cache_clear()` each epoch."
    if holder.graph:
        return (
            f"Store `.detach()`, or `.item()` of a single number, in {name}{at}; then its graph is freed. If the"
            " tensors themselves are too large, empty it as soon as they are used, or move them to the CPU."
        )
    if holder.kind == "dict":
        return (
            f"Delete the entries of {name} that are no longer needed{at}, or bound it; clear it at the end of an epoch."
        )
    if holder.kind == "deque":
        return f"Give {name} a bound: `deque(maxlen=N)`; or take entries out as fast as they come in{at}."
    return (
        f"Empty {name}{at} as soon as its tensors are used, or bound it: `collections.deque(maxlen=N)`; store numbers"
        " where numbers are enough."
    )
