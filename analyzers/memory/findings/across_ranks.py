"""Write the finding that one rank has clearly more memory in use than the others."""

from collections.abc import Sequence

from analyzers.memory.answers.across_ranks import UnevenRank, uneven_rank
from analyzers.memory.findings.evidence import fact, in_words, rank_subject, ranks_of
from analyzers.memory.model import Device
from analyzers.report import Finding, Severity
from analyzers.words import share, size

EVIDENCE_SHOWN = 3
ADVICE = {
    "parameters": "Split the layers more evenly over the pipeline stages, or shard what only this rank keeps whole.",
    "optimizer_state": "Split the parameters more evenly over the ranks: optimizer state is as uneven as they are.",
    "gradients": "Split the parameters more evenly over the ranks: gradients are as uneven as they are.",
    "activations": "Give this rank shorter sequences; if it is a pipeline stage, fewer microbatches in flight.",
    "inputs": "Give every rank samples of similar length.",
}
OTHER_ADVICE = "Compare what this rank does with what the others do."


def uneven_findings(devices: Sequence[Device]) -> list[Finding]:
    """Return a list with the finding that one rank peaks clearly above the others; empty if none does."""
    uneven = uneven_rank(devices)
    return [uneven_finding(uneven)] if uneven else []


def uneven_finding(uneven: UnevenRank) -> Finding:
    """Return the finding that a rank peaks above the others, with the category that makes most of the difference."""
    device, excess = uneven.fullest, uneven.excess_bytes
    more, usual = uneven.excess_by_category, uneven.usual
    worst = max(more, key=lambda name: more[name])
    lowest = min(other.peak_allocated_bytes for other in uneven.others)
    who = rank_subject(ranks_of(device))
    return Finding(
        id="memory.uneven",
        severity=Severity.WARNING,
        title=f"{who.capitalize()} peaks {size(excess)} above the other ranks, so it runs out of memory first",
        why=f"Its peak is {size(device.peak_allocated_bytes)}. The lowest peak of the other ranks is {size(lowest)}."
        f" The difference is mostly {in_words(worst)}: {size(more[worst])}.",
        next=f"{ADVICE.get(worst, OTHER_ADVICE)} Spread evenly over all ranks, the peak would be"
        f" {size(excess - excess / (len(uneven.others) + 1))} lower.",
        ranks=ranks_of(device),
        step=device.step,
        evidence=[
            fact(
                device,
                f"{in_words(name)}: {size(device.categories[name])} here, {size(usual[name])} on the median rank"
                f" ({share(more[name], excess)} of the difference)",
            )
            for name in sorted(more, key=lambda name: -more[name])[:EVIDENCE_SHOWN]
            if more[name] > 0
        ],
        confidence=0.8,
    )
