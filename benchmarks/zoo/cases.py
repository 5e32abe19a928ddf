"""Read the expected answer of a script: the header in its docstring, its marked lines, and whether it is kept back."""

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

HERE = Path(__file__).parent
HEADER = re.compile(r'\A"""(?P<title>.*?)\n\n(?P<fields>.*?)"""', re.DOTALL)
CULPRIT_LINE = "# <- culprit"
RECORDER_LINE = "# recorders"
UNHARMED = {"healthy", "slow"}
"""Folders of jobs with which nothing is wrong, or which are at most slow."""
KEPT_BACK_SHARE = 3
MORE_EXACT = {
    "crashed": {"signal", "exit_code", "dataloader_worker", "disk_full", "unused_parameters", "nonfinite_loss"},
    "dead": {"signal", "exit_code", "early_exit"},
    "host_stuck": {"collective_timeout"},
    "oom": {"host_oom"},
    "startup": {"crashed"},
}
"""{class in a header: classes that are accepted in its place, because they say the same or say it more exactly}."""


class Part(StrEnum):
    """The part of a case: it says whether rules may be tuned on it."""

    TUNED = "tuned"
    KNOWN = "known"
    """The third of the first collection that was kept back until rules were tuned on the second collection."""
    SECOND = "second"
    SECOND_KNOWN = "second, known"
    """The third of the second collection that was kept back until rules were tuned on the third."""
    THIRD = "third"
    THIRD_KNOWN = "third, known"
    """The third of the third collection that was kept back until rules were tuned on the fourth."""
    FOURTH = "fourth"
    FOURTH_KNOWN = "fourth, known"
    """The third of the fourth collection that was kept back until rules were tuned on the fifth."""
    FIFTH = "fifth"
    FIFTH_KNOWN = "fifth, known"
    """The third of the fifth collection that was kept back until rules were tuned on the seventh."""
    SIXTH_KNOWN = "sixth, known"
    """The sixth collection, which was kept back as a whole until rules were tuned on the seventh."""
    SEVENTH = "seventh"
    KEPT = "kept"
    """The cases on which no rule was tuned; nobody looks at how they fail."""
    EIGHTH = "eighth"
    """The cases of the eighth collection whose answers have been seen; no rule was changed for them yet."""
    EIGHTH_KEPT = "eighth, kept"
    """The third of the eighth collection that stays kept back; nobody looks at how they fail."""
    NINTH = "ninth"
    """The ninth collection, which was labelled and run after the last rule; no rule changed before it was counted."""
    TENTH = "tenth"
    """The tenth collection, written and labelled by somebody who had not read the rules, before any run on it."""


PARTS = {
    "second": Part.SECOND,
    "second, kept back": Part.SECOND_KNOWN,
    "third": Part.THIRD,
    "third, kept back": Part.THIRD_KNOWN,
    "fourth": Part.FOURTH,
    "fourth, kept back": Part.FOURTH_KNOWN,
    "fifth": Part.FIFTH,
    "fifth, kept back": Part.FIFTH_KNOWN,
    "sixth, kept back": Part.SIXTH_KNOWN,
    "seventh": Part.SEVENTH,
    "seventh, kept back": Part.KEPT,
    "eighth": Part.EIGHTH,
    "eighth, kept back": Part.EIGHTH_KEPT,
    "ninth, kept back": Part.NINTH,
    "tenth, kept back": Part.TENTH,
}


@dataclass(frozen=True)
class Case:
    """A script and its expected answer.

    `culprits` are the accepted sets of ranks: an empty set among them accepts an answer without ranks, and None accepts
    any ranks. `classes` has no class that the header names after `except:`, because it does not apply to the script
    although `MORE_EXACT` accepts it. `lines` are the marked source lines, empty if no line of the script causes the
    problem. `from_logs` has (class, ranks) answers that are accepted if only logs exist, because logs cannot show more.
    """

    script: Path
    title: str
    classes: frozenset[str]
    culprits: frozenset[tuple[int, ...]] | None
    lines: frozenset[int]
    ranks: int
    part: Part
    restarts: int = 0
    looked_at_after_s: float | None = None
    from_logs: frozenset[tuple[str, tuple[int, ...]]] = frozenset()

    @property
    def name(self) -> str:
        return self.script.stem

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong with the job, so that any blame is a false alarm."""
        return self.script.parent.name in UNHARMED

    def text(self, *, recorded: bool) -> str:
        """Return the script; without recorders, their two lines become empty, so that line numbers stay the same."""
        lines = self.script.read_text().splitlines()
        return "\n".join("" if not recorded and line.endswith(RECORDER_LINE) else line for line in lines) + "\n"


def cases() -> Iterator[Case]:
    """Yield the cases in order of collection, folder and name."""
    for script in sorted(HERE.glob("*/*/*.py")):
        yield case_of(script)


def case_of(script: Path) -> Case:
    """Return the case of a script.

    Raises:
        ValueError: The header is incomplete.
    """
    text = script.read_text()
    header = HEADER.match(text)
    if not header:
        raise ValueError(f"{script}: no header")
    fields = dict(line.split(": ", 1) for line in header["fields"].splitlines() if line)
    after = fields.get("looked_at_after")
    return Case(
        script,
        header["title"],
        classes_of(fields["class"]) - frozenset(fields.get("except", "").split(", ")),
        culprits_of(fields["culprit"]),
        frozenset(n for n, line in enumerate(text.splitlines(), 1) if line.endswith(CULPRIT_LINE)),
        int(fields["ranks"]),
        part_of(script, fields.get("collection", "first")),
        int(fields.get("restarts", 0)),
        float(after) if after else None,
        answers_of(fields.get("logs", "")),
    )


def part_of(script: Path, collection: str) -> Part:
    """Return the part of a case. A third of each collection was kept back."""
    if collection == "first":
        return Part.TUNED if zlib.crc32(script.stem.encode()) % KEPT_BACK_SHARE else Part.KNOWN
    return PARTS[collection]


def classes_of(text: str) -> frozenset[str]:
    """Return the classes named in a header, and the more specific classes that are accepted in their place."""
    named = text.split(", ")
    return frozenset(named).union(*(MORE_EXACT.get(name, ()) for name in named))


def answers_of(text: str) -> frozenset[tuple[str, tuple[int, ...]]]:
    """Parse `early_exit 1,2 | unknown` to (class, ranks) pairs; a class without ranks accepts no rank."""
    parts = (part.split(" ") for part in text.split(" | ") if part)
    return frozenset((kind, tuple(int(r) for rank in ranks for r in rank.split(","))) for kind, *ranks in parts)


def culprits_of(text: str) -> frozenset[tuple[int, ...]] | None:
    """Parse the accepted sets of ranks in `0, 1 | 1`, `none` or `any`; the result for `any` is None."""
    if text == "any":
        return None
    sets = (part.strip() for part in text.split("|"))
    return frozenset(() if part == "none" else tuple(sorted(map(int, part.split(",")))) for part in sets)
