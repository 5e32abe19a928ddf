"""Implement `workbench compare --fail-on`: let a CI job fail if one run is worse than another.

The condition is the severity of findings, or limits on named measures such as `step_time>3%`.
"""

import re
from dataclasses import dataclass, field

from analyzers.compare import ALLOWED_CHANGES, Measure
from analyzers.report import Report, Severity
from workbench.errors import UsageProblem

MEASURES = tuple(Measure)
_ITEM = re.compile(r"(\w+)(?:\s*>\s*(\d+(?:\.\d+)?)\s*(%?))?")
_DEFAULT_LIMIT = 0.1


@dataclass
class Gate:
    """The condition under which `workbench compare` fails, from the option `--fail-on`.

    It fails if a finding is at least as severe as `severity`. It also fails if a measure has got worse by more than its
    limit in `limits`, {measure: limit}. Limits are fractions (0.1 means 10 %).
    """

    severity: Severity | None = None
    limits: dict[str, float] = field(default_factory=dict)

    def fails(self, report: Report[object]) -> bool:
        """Return whether the report has a finding for which the comparison must fail.

        Such a finding is at least as severe as `severity`, or says that a measure in `limits` has got worse or could
        not be judged.
        """
        worst = report.worst()
        if self.severity and worst and worst.weight >= self.severity.weight:
            return True
        ids = {f"compare.{name}{ending}" for name in self.limits for ending in ("", "_undecided")}
        # The median may hold while a few slow steps raise the mean: both are the step time to whoever names it.
        ids |= {"compare.step_time_mean"} if "step_time" in self.limits else set()
        return any(finding.id in ids for finding in report.findings)


def parse_gate(text: str | None) -> Gate:
    """Return the `Gate` for a text such as `error`, or measures with optional limits: `step_time>3%,memory>0.1,loss`.

    Raises:
        UsageProblem: An item is neither a severity nor a measure.
    """
    gate = Gate()
    for item in (part.strip() for part in (text or "").split(",") if part.strip()):
        name, limit, percent = _parse_item(item)
        if name in MEASURES:
            usual = ALLOWED_CHANGES.get(name, _DEFAULT_LIMIT)
            gate.limits[name] = float(limit) / (100 if percent else 1) if limit else usual
        else:
            gate.severity = Severity(name)
    return gate


def _parse_item(item: str) -> tuple[str, str | None, str | None]:
    """Return (name, limit, percent sign) of an item such as `step_time>3%`; missing parts are None."""
    match = _ITEM.fullmatch(item)
    if match and (match[1] in MEASURES or (match[1] in ("warning", "error") and not match[2])):
        return match[1], match[2], match[3]
    raise UsageProblem(
        f"--fail-on {item}: not known", f"give warning, error, or {', '.join(MEASURES)} such as memory>5%"
    )
