"""Parse the query of a page's address, which may contain anything.

The address is the whole state of a page, so that another person who opens the link sees the same chart.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from analyzers.memory.model import Device
from workbench.present.tables.memory import GROUPINGS

Query = dict[str, str]

NO_NODE = -1
_AXES = ("time", "entry")
"""The units of the memory timeline's axis: the time since the first trace entry, or trace entries."""
COLOURS = ("category", "pool", "stream", "phase", "rank")
ADDRESS = re.compile(r"0x[0-9a-f]{1,16}")
DIGITS = 19
"""The number of digits from which on numbers are not read.

Times in ns since 1970 have 19 digits, and int() is slow for long texts.
"""
_SEARCH_CHARACTERS = 100
NODES = 1 << 40


def parse_query(search: object) -> Query:
    """Return the query of an address as {name: value}; if a name occurs twice, the last value counts."""
    return dict(parse_qsl(search.lstrip("?"))) if isinstance(search, str) else {}


def address(query: Mapping[str, str]) -> str:
    return f"?{urlencode(query)}"


def number(query: Mapping[str, str], name: str, beyond: int, default: int) -> int:
    """Return the query parameter `name` as an int if it is at least 0 and less than `beyond`, else `default`."""
    text = query.get(name, "")
    # `isdigit` alone accepts characters such as "²", which int() refuses.
    fits = text.isascii() and text.isdigit() and len(text) < DIGITS and int(text) < beyond
    return int(text) if fits else default


def search_text(query: Mapping[str, str], name: str = "find") -> str:
    return query.get(name, "")[:_SEARCH_CHARACTERS]


def window(query: Mapping[str, str], beyond: int) -> tuple[int, int] | None:
    first, last = number(query, "from", beyond, 0), number(query, "to", beyond + 1, 0)
    return (first, last) if first < last else None


@dataclass(frozen=True)
class MemoryQuery:
    """The state of the memory page, as the query of its address sets it.

    `entry` selects the instant after that trace entry. `by` is the grouping of the tree of live memory, and `node` the
    selected node of the tree. `find` is the text to highlight, and `colour` what the timeline's colours stand for.
    `axis` is the unit of the timeline's axis. `since` is the trace entry of the instant to compare with, and `block`
    the memory address to describe. With `library`, stacks have the frames of libraries, too.
    """

    entry: int
    by: str
    node: int
    find: str
    colour: str
    axis: str = "time"
    since: int | None = None
    block: int | None = None
    library: bool = False


def memory_query(query: Mapping[str, str], device: Device) -> MemoryQuery:
    """Return the state of the memory page for `device`, from the query of an address.

    If the query names no instant, the selected instant is the failed allocation, or else the peak.
    """
    by, colour = query.get("by", ""), query.get("colour", "")
    return MemoryQuery(
        number(query, "entry", device.entries, device.oom.index if device.oom else device.peak_index),
        by if by in GROUPINGS else GROUPINGS[0],
        # A node of another grouping may be in the address: the page falls back to the whole tree.
        number(query, "under", NODES, NO_NODE),
        search_text(query),
        colour if colour in COLOURS else COLOURS[0],
        query.get("axis", "") if query.get("axis") in _AXES else _AXES[0],
        number(query, "since", device.entries, 0) if "since" in query else None,
        int(query["block"], 16) if ADDRESS.fullmatch(query.get("block", "")) else None,
        query.get("library") == "1",
    )
