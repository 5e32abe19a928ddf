"""Say what a finding about numbers means, for `workbench explain`: findings of memory, traces and step logs."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Explained:
    """What a finding on numbers means: `what` it is, how it is `tested`, what to do `next`, and what `rules_out` it.

    The finding itself has the numbers; each of these is a sentence or two without a full stop at the end.
    """

    id: str
    what: str
    tested: str
    next: str
    rules_out: str = ""


def explained(room: str, rows: Iterable[tuple[str, str, str, str, str]]) -> tuple[Explained, ...]:
    """Return what findings of a room mean, from rows of (name, what, tested, next, rules_out)."""
    return tuple(
        Explained(id=f"{room}.{name}", what=what, tested=tested, next=step, rules_out=rules_out)
        for name, what, tested, step, rules_out in rows
    )
