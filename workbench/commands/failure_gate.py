"""When a comparison fails a CI job: from a severity on, or by the measures that a gate names."""

import re
from dataclasses import dataclass, field
from typing import Any

from analyzers.compare import ALLOWED_CHANGES, Measure
from analyzers.report import Report, Severity
from workbench.errors import UsageProblem

MEASURES = tuple(Measure)
ITEM = re.compile(r"(\w+)(?:\s*>\s*(\d+(?:\.\d+)?)\s*(%?))?")
USUAL_LIMIT = 0.1


@dataclass
class Gate:
    """`limits`: the relative change for the worse of each named measure that is borne."""

    severity: Severity | None = None
    limits: dict[str, float] = field(default_factory=dict)

    def fails(self, report: Report[Any]) -> bool:
        """Whether a finding is so severe, or is on a named measure: that it is worse, or cannot be judged."""
        worst = report.worst()
        if self.severity and worst and worst.weight >= self.severity.weight:
            return True
        named = {f"compare.{name}{end}" for name in self.limits for end in ("", "_undecided")}
        named |= {"compare.step_time_mean"} if "step_time" in self.limits else set()
        return any(finding.id in named for finding in report.findings)


def gate(text: str | None) -> Gate:
    """`error`, or measures with or without a limit: `step_time>3%,memory>0.1,loss`."""
    found = Gate()
    for item in (part.strip() for part in (text or "").split(",") if part.strip()):
        name, limit, percent = parts(item)
        if name in MEASURES:
            usual = ALLOWED_CHANGES.get(name, USUAL_LIMIT)
            found.limits[name] = float(limit) / (100 if percent else 1) if limit else usual
        else:
            found.severity = Severity(name)
    return found


def parts(item: str) -> tuple[str, str | None, str | None]:
    """(name, number, percent sign) of an item."""
    match = ITEM.fullmatch(item)
    if match and (match[1] in MEASURES or (match[1] in ("warning", "error") and not match[2])):
        return match[1], match[2], match[3]
    raise UsageProblem(
        f"--fail-on {item}: not known", f"give warning, error, or {', '.join(MEASURES)} such as memory>5%"
    )
