"""Read the expected answer of a script: the header in its docstring, and its marked lines.

The field `collection` of the header says when the script was written, and whether it was kept back: then no rule was
tuned on it before it was counted.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
HEADER = re.compile(r'\A"""(?P<title>.*?)\n\n(?P<fields>.*?)"""', re.DOTALL)
CULPRIT_LINE = "# <- culprit"
RECORDER_LINE = "# recorders"
UNHARMED = {"healthy", "slow"}
"""Folders of jobs with which nothing is wrong, or which are at most slow."""
MORE_EXACT = {
    "crashed": {"signal", "exit_code", "dataloader_worker", "disk_full", "unused_parameters", "nonfinite_loss"},
    "dead": {"signal", "exit_code", "early_exit"},
    "host_stuck": {"collective_timeout"},
    "oom": {"host_oom"},
    "startup": {"crashed"},
}
"""{class in a header: classes that are accepted in its place, because they say the same or say it more exactly}."""
COLLECTIONS = "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"
PARTS = [f"{collection}{kept}" for collection in COLLECTIONS for kept in ("", ", kept back")]
"""The collections of scripts in the order in which they were written, and what was kept back of each."""
UNSEEN = {"seventh, kept back", "eighth, kept back"}
"""The parts whose answers nobody has looked at: no rule may be tuned on them.

What was kept back of the first to the sixth collection was looked at when the next one was written. The ninth and the
tenth were kept back as a whole until they were counted; their misses are published.
"""


@dataclass(frozen=True)
class Case:
    """A script and its expected answer.

    `part` is its collection, followed by ", kept back" if no rule was tuned on the script before it was counted.
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
    part: str
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
    """Yield the cases in order of cause and name."""
    for script in sorted(HERE.glob("*/*.py")):
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
        fields["collection"],
        int(fields.get("restarts", 0)),
        float(after) if after else None,
        answers_of(fields.get("logs", "")),
    )


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
