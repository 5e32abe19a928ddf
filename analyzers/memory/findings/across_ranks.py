"""Write the finding that one rank has clearly more memory in use than the others."""

from collections.abc import Sequence

from analyzers.memory.findings.evidence import fact, in_words, rank_subject, ranks_of
from analyzers.memory.model import Device
from analyzers.memory.ranks.across_ranks import UnevenRank, uneven_rank
from analyzers.report import Finding, Severity
from analyzers.words import share, size

_EVIDENCE_SHOWN = 3
_NOTABLE_SHARE = 0.001
"""The share of the difference between ranks above which a category is evidence."""
ADVICE = {
    "parameters": "Split the layers more evenly over the pipeline stages, or shard what only this rank keeps whole.",
    "optimizer_state": "Split the parameters more evenly over the ranks: optimizer state is as uneven as they are.",
    "gradients": "Split the parameters more evenly over the ranks: gradients are as uneven as they are.",
    "activations": "Give this rank shorter sequences; if it is a pipeline stage, fewer microbatches in flight.",
    "inputs": "Give every rank samples of similar length.",
}
_OTHER_ADVICE = "Compare the memory snapshots of this rank and of another one (`workbench compare A B`)."


def uneven_findings(devices: Sequence[Device]) -> list[Finding]:
    """Return a list with the finding that one rank peaks clearly above the others; empty if none does."""
    uneven = uneven_rank(devices)
    return [_uneven_finding(uneven)] if uneven else []


def _usual_of(uneven: UnevenRank) -> str:
    """Return a phrase for what the rank is compared with: the other rank, or the median of the other ranks."""
    return "other rank" if len(uneven.others) == 1 else "median of the other ranks"


def _uneven_finding(uneven: UnevenRank) -> Finding:
    """Return the finding that a rank peaks above the others, with the category that causes most of the difference."""
    device, excess = uneven.fullest, uneven.excess_bytes
    more, usual = uneven.excess_by_category, uneven.usual
    worst = max(more, key=lambda name: more[name])
    who = rank_subject(ranks_of(device))
    return Finding(
        id="memory.uneven",
        severity=Severity.WARNING,
        title=f"{who.capitalize()} peaks {size(excess)} above the {_usual_of(uneven)}, so it would run out of memory"
        " first",
        why=f"The peak of {who} is {size(device.peak_allocated_bytes)}, that of the {_usual_of(uneven)}"
        f" {size(device.peak_allocated_bytes - excess)}. The difference is mostly {in_words(worst)}:"
        f" {size(more[worst])}.",
        next=f"{ADVICE.get(worst, _OTHER_ADVICE)} If this difference were spread evenly over all ranks, the peak of"
        f" {who} would be {size(excess - excess / (len(uneven.others) + 1))} lower.",
        ranks=ranks_of(device),
        step=device.step,
        evidence=[
            fact(
                device,
                f"{in_words(name)}: {size(device.categories[name])} on {who}, {size(usual[name])}"
                f" {'on' if len(uneven.others) == 1 else 'in'} the {_usual_of(uneven)}"
                f" ({share(more[name], excess)} of the difference)",
            )
            for name in sorted(more, key=lambda name: -more[name])[:_EVIDENCE_SHOWN]
            if more[name] > _NOTABLE_SHARE * excess
        ],
        confidence=0.8,
    )
