"""Write the finding that the peaks of two snapshots differ."""

from analyzers.memory.diff import Diff, Instant
from analyzers.memory.findings.evidence import in_words
from analyzers.memory.findings.remedies import ADVICE
from analyzers.report import Evidence, Finding, Severity
from analyzers.words import percent_change, size, uncapitalised

# A smaller change is noise: caches, workspaces and the order of frees differ between two equal runs.
_NOISE_SHARE, _NOISE_BYTES = 0.05, 1 << 20
_GROUPS_SHOWN = 3
_STATES = {"went": "is gone"}
"""{state of a group of blocks: words for it in a sentence}, for a state that is not a verb of a sentence."""


def comparison_findings(diff: Diff, b: Instant) -> list[Finding]:
    """Return a list with the finding that the peak changed; empty if the change is no more than noise.

    The rank and step of the finding are those of `b`, the second of the two compared states.
    """
    if abs(diff.bytes) < max(_NOISE_BYTES, _NOISE_SHARE * diff.a_bytes):
        return []
    grew = diff.bytes > 0
    most = (max if grew else min)(diff.categories, key=lambda change: change.bytes)
    verb, category = "grew" if grew else "shrank", in_words(most.what)
    return [
        Finding(
            id=f"compare.memory.{verb}",
            severity=Severity.WARNING if grew else Severity.INFO,
            title=f"Peak allocated memory {verb} by {size(abs(diff.bytes))}, mostly {category}",
            why=f"The peak went from {size(diff.a_bytes)} to {size(diff.b_bytes)}"
            f" ({percent_change(diff.a_bytes, diff.b_bytes)}), {category} from {size(most.a_bytes)} to"
            f" {size(most.b_bytes)}.",
            next=f"Look at the modules and lines in the evidence: they grew most. If the growth is intended:"
            f" {uncapitalised(ADVICE[most.what])}."
            if grew
            else "Nothing to do; the evidence lists the modules and lines that shrank most.",
            ranks=[] if b.artefact.rank is None else [b.artefact.rank],
            step=b.artefact.step,
            evidence=evidence(diff, b, grew=grew),
            confidence=0.9,
        )
    ]


def evidence(diff: Diff, b: Instant, *, grew: bool) -> list[Evidence]:
    """Return the modules and lines that changed most: those that grew if `grew` is true, or else those that shrank."""
    most = [*diff.modules[:_GROUPS_SHOWN], *diff.lines[:_GROUPS_SHOWN]]
    return [
        Evidence(
            text=f"{change.what} {_STATES.get(change.state, change.state)}: {size(change.a_bytes)} ->"
            f" {size(change.b_bytes)}",
            source=str(b.artefact.path),
        )
        for change in most
        if change.bytes and (change.bytes > 0) == grew
    ]
