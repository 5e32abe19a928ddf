"""Two snapshots side by side: what appeared, grew, shrank and went, aligned by name and line, never by address."""

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import pandas as pd

from analyzers import run, store
from analyzers.memory.categories.grouping import Held, Path, held
from analyzers.memory.findings.remedies import REMEDY
from analyzers.memory.loading import opened
from analyzers.memory.replay.lifetimes import Replay
from analyzers.report import Evidence, Finding, Severity
from analyzers.run import Artefact
from analyzers.words import share, size

LINE = re.compile(r":\d+$")
DEPTH = {"category": 1}
"""Of a category only its name is compared; of the others the whole path."""
NOISE, NOISE_BYTES = 0.05, 1 << 20
EVIDENCE_AT_MOST = 6


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two: a device at an instant, by default at its peak. `entry` -1: before the first entry."""

    artefact: Artefact
    device: int = 0
    entry: int | None = None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One group in both; `state` is appeared, grew, same, shrank or went."""

    what: str
    state: str
    a_bytes: int
    b_bytes: int
    a_blocks: int
    b_blocks: int

    @property
    def bytes(self) -> int:
        return self.b_bytes - self.a_bytes


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """All that changed from `a` to `b`, the largest change first; the three lists group the same bytes."""

    a_bytes: int
    b_bytes: int
    categories: list[Change]
    modules: list[Change]
    lines: list[Change]

    def table(self, by: str) -> pd.DataFrame:
        """`categories`, `modules` or `lines`. Columns: what, state, a_bytes, b_bytes, a_blocks, b_blocks, change."""
        rows = [msgspec.structs.asdict(change) | {"change": change.bytes} for change in getattr(self, by)]
        return pd.DataFrame(rows, columns=[*Change.__struct_fields__, "change"])


def between(a: Side, b: Side, options: store.Options | None = None) -> Diff:
    """What changed from `a` to `b`: two runs, steps, ranks, or instants of one snapshot.

    Raises:
        InputError: One of them cannot be read.
    """
    found = {by: changes(grouped(a, by, options), grouped(b, by, options), by) for by in ("category", "module", "line")}
    return Diff(
        a_bytes=sum(change.a_bytes for change in found["category"]),
        b_bytes=sum(change.b_bytes for change in found["category"]),
        categories=found["category"],
        modules=found["module"],
        lines=found["line"],
    )


def grouped(side: Side, by: str, options: store.Options | None) -> dict[Path, Held]:
    groups: dict[Path, Held] = {}
    for path, amount in held(Replay(opened(side.artefact, options).device(side.device)), by, side.entry).items():
        groups[path[: DEPTH.get(by)]] = groups.get(path[: DEPTH.get(by)], Held()) + amount
    return groups


def changes(a: Mapping[Path, Held], b: Mapping[Path, Held], by: str) -> list[Change]:
    """Each group of either side, the largest change first."""
    link = " " if by == "line" else "."
    found = [change(link.join(path), *amounts) for path, amounts in aligned(a, b)]
    return sorted(found, key=lambda one: (-abs(one.bytes), one.what))


def aligned(a: Mapping[Path, Held], b: Mapping[Path, Held]) -> Iterator[tuple[Path, tuple[Held, Held]]]:
    """Groups of one name; those that only one side has meet where they differ in line numbers alone."""
    for path in a.keys() & b.keys():
        yield path, (a[path], b[path])
    left, right = (loosely(one, other) for one, other in ((a, b), (b, a)))
    for loose in left.keys() | right.keys():
        path, amount = left.get(loose, (loose, Held()))
        newer, grown = right.get(loose, (path, Held()))
        yield newer, (amount, grown)


def loosely(one: Mapping[Path, Held], other: Mapping[Path, Held]) -> dict[Path, tuple[Path, Held]]:
    """What only `one` has, by its path without line numbers: (a path with them, how much)."""
    found: dict[Path, tuple[Path, Held]] = {}
    for path in one.keys() - other.keys():
        loose = tuple(LINE.sub("", name) for name in path)
        known, amount = found.get(loose, (path, Held()))
        found[loose] = max(path, known), amount + one[path]
    return found


def change(what: str, a: Held, b: Held) -> Change:
    counts = {"a_bytes": a.bytes, "b_bytes": b.bytes, "a_blocks": a.blocks, "b_blocks": b.blocks}
    return Change(what=what, state=state(a, b), **counts)


def state(a: Held, b: Held) -> str:
    if not a.blocks or not b.blocks:
        return "went" if a.blocks else "appeared"
    return "same" if a.bytes == b.bytes else "grew" if b.bytes > a.bytes else "shrank"


def fullest(artefacts: Sequence[Artefact], options: store.Options | None = None) -> Side:
    """Of the last step's snapshots the device with the highest peak.

    Raises:
        InputError: None of them can be read.
    """
    sides = [
        (device["peak_allocated_bytes"], Side(artefact=artefact, device=device["device"]))
        for artefact in run.newest_step(artefacts)
        for device in opened(artefact, options).columns.meta["devices"]
    ]
    return max(sides, key=lambda side: side[0])[1]


def compare(
    a: Sequence[Artefact], b: Sequence[Artefact], options: store.Options | None = None
) -> tuple[Diff, list[Finding]]:
    """What the fullest devices of two runs, or two files, hold at their peaks, and what of it is worth telling.

    Raises:
        InputError: One of them cannot be read.
    """
    first, second = fullest(a, options), fullest(b, options)
    found = between(first, second, options)
    return found, findings(found, second)


def findings(diff: Diff, b: Side) -> list[Finding]:
    """One finding if the sum changed by more than noise."""
    by = diff.b_bytes - diff.a_bytes
    if abs(by) < max(NOISE_BYTES, NOISE * diff.a_bytes):
        return []
    way, worst = ("grew", max) if by > 0 else ("shrank", min)
    category = worst(diff.categories, key=lambda one: one.bytes)
    return [
        Finding(
            id=f"compare.memory.{way}",
            severity=Severity.WARNING if by > 0 else Severity.INFO,
            title=f"The peak {way} by {size(abs(by))}, mostly {category.what.replace('_', ' ')}",
            why=f"From {size(diff.a_bytes)} to {size(diff.b_bytes)} ({share(abs(by), diff.a_bytes)});"
            f" {category.what.replace('_', ' ')} went from {size(category.a_bytes)} to {size(category.b_bytes)}.",
            next=(f"{REMEDY[category.what].capitalize()}; " if by > 0 else "")
            + "look at the lines that changed most below.",
            ranks=[] if b.artefact.rank is None else [b.artefact.rank],
            step=b.artefact.step,
            evidence=evidence(diff, b, by > 0),
            confidence=0.9,
        )
    ]


def evidence(diff: Diff, b: Side, grown: bool) -> list[Evidence]:
    """The modules and lines that changed most in the direction of the sum."""
    told = [one for one in [*diff.modules[:3], *diff.lines[:3]] if (one.bytes > 0) == grown and one.bytes]
    return [
        Evidence(
            text=f"{one.what} {one.state}: {size(one.a_bytes)} to {size(one.b_bytes)}", source=str(b.artefact.path)
        )
        for one in told[:EVIDENCE_AT_MOST]
    ]
