"""Where the evidence of a finding is to be seen: one gesture leads there, on every face."""

from dataclasses import dataclass

from analyzers.report import Finding
from workbench.ask import ROOMS

ELSEWHERE = {"incident.crashed": "hang", "compare": "compare"}
"""Findings that are not called after the room in which they are seen."""


@dataclass(frozen=True)
class Sight:
    """`room`: the view to turn to. `rank` and `step`: what to look at there, None where it is of all of them."""

    room: str
    finding: str
    rank: int | None = None
    step: int | None = None

    def is_about(self, *names: str) -> bool:
        """Whether the finding is one of these, or of a kind below one of them."""
        return any(self.finding == name or self.finding.startswith(f"{name}.") for name in names)


def sight(finding: Finding) -> Sight | None:
    """The evidence of a finding; None where no view shows any."""
    named = finding.id.partition(".")[0]
    room = ELSEWHERE.get(finding.id) or ELSEWHERE.get(named) or named
    if room not in (*ROOMS, *ELSEWHERE.values()):
        return None
    return Sight(room, finding.id, finding.ranks[0] if finding.ranks else None, finding.step)
