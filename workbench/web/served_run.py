"""What a page draws from: one run, its report, and the part of it that each room found."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl

from analyzers.report import Report
from analyzers.run import Artefact, Kind, Run
from analyzers.store import Options
from workbench.ask import ask, parts

WHOLE = -1
GROUPINGS = ("module", "line", "stack", "category")
COLOURS = ("category", "pool", "stream", "phase", "rank")
ADDRESS = re.compile(r"0x[0-9a-f]{1,16}")
DIGITS = 19
"""Of a number in the address: nanoseconds of a day in this century, and no longer."""


@dataclass(frozen=True)
class ServedRun:
    """Made once when the server starts; pages only read it."""

    run: Run
    options: Options
    report: Report[Any]
    parts: dict[str, Any]
    other: Run | None = None
    """The second of two runs that are compared; `run` is the first."""
    trusted: bool = True
    """Whether sources may be shown that the run names: what strangers drop may name any file of this machine."""

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What `run.json` says; empty where there is none."""
        return self.run.manifest()

    @property
    def name(self) -> str:
        """What is looked at, for titles."""
        return f"{self.run.root}, {self.other.root}" if self.other else str(self.run.root)

    def snapshot(self, path: str) -> Artefact | None:
        """The snapshot that a page speaks of: one of the run's own, whatever the address bar says."""
        return next((artefact for artefact in self.run.of(Kind.SNAPSHOT) if str(artefact.path) == path), None)


def served_run(run: Run, room: str, options: Options, *, trusted: bool = True) -> ServedRun:
    report = ask(room, run, options)
    return ServedRun(run, options, report, parts(report), trusted=trusted)


def asked(search: str | None) -> dict[str, str]:
    """The query of an address, the last of each name."""
    return dict(parse_qsl((search or "").lstrip("?")))


def number(query: dict[str, str], name: str, beyond: int, otherwise: int) -> int:
    """A number of the address below `beyond`; whatever else stands there is passed over."""
    wanted = query.get(name, "")
    fits = wanted.isascii() and wanted.isdigit() and len(wanted) < DIGITS and int(wanted) < beyond
    return int(wanted) if fits else otherwise


@dataclass(frozen=True)
class Instant:
    """Where the memory page looks: the instant, the grouping, the subtree, what is sought, the colours, the instant to
    compare with, and the address whose block is told.
    """

    entry: int
    by: str
    under: int
    find: str
    colour: str
    since: int | None = None
    block: int | None = None


def instant(query: dict[str, str], device: Any) -> Instant:
    """The instant that the address names; what makes no sense there is passed over."""
    by, colour = query.get("by", ""), query.get("colour", "")
    return Instant(
        number(query, "entry", device.entries, device.oom.index if device.oom else device.peak_index),
        by if by in GROUPINGS else GROUPINGS[0],
        number(query, "under", 1 << 40, WHOLE),
        query.get("find", "")[:100],
        colour if colour in COLOURS else COLOURS[0],
        number(query, "since", device.entries, 0) if "since" in query else None,
        int(query["block"], 16) if ADDRESS.fullmatch(query.get("block", "")) else None,
    )


def span_of(query: dict[str, str], beyond: int) -> tuple[int, int] | None:
    """The window `from` .. `to` of the address; None where there is none that makes sense."""
    first, last = number(query, "from", beyond, 0), number(query, "to", beyond + 1, 0)
    return (first, last) if first < last else None
