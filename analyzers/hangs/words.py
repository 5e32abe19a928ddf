"""Culprits as sentences and findings."""

from collections.abc import Sequence

from analyzers.hangs.model import Culprit, user_frame
from analyzers.report import Evidence, Finding, Severity
from analyzers.wording import place, verb, who

NEXT = {
    "host_stuck": "look at the stack of the rank: what it computes or reads there never ends",
    "dead": "read the log and the exit status of the rank; the others only wait for it",
    "skipped": "look for a condition that differs between ranks before this operation",
    "mismatch": "compare the tensors that the ranks pass at this line: shapes, types and order must agree",
    "order_cycle": "issue the collectives of these groups in the same order on every rank",
    "all_arrived": "check the network and the devices of the group; take a second set of dumps to see whether it moves",
    "lagging": "look at the device and the streams of the lagging ranks",
    "slow": "see `workbench steps` and `workbench trace` for what the slow rank does",
    "unmatched_p2p": "check that each send has a recv on the peer, in the same order",
    "unknown": "collect the dumps of all ranks",
}


SAID = {
    "dead": "{ranks} {be} gone ({detail}){before}",
    "host_stuck": "{ranks} {be} stuck{where} and never joined {name}",
    "skipped": "{ranks} skipped {name}{went_on}",
    "mismatch": "{ranks} issued a mismatched {name}: {detail}{at}",
    "order_cycle": "{ranks} {order}: {detail}",
    "all_arrived": "{ranks} {be} all in {name}, which does not complete",
    "lagging": "{ranks} {lag} behind in {name}: {detail}",
    "slow": "{ranks} {be} slow, not stuck{where}: {detail}",
    "unmatched_p2p": "{ranks} {have} no partner for a send or recv{where}: {detail}",
    "unknown": "no verdict on {ranks}: {detail}",
}


def title(culprit: Culprit) -> str:
    """What the culprit did: `rank 3 is stuck in tokenize (data/text.py:41) and never joined all_reduce #412 of dp`."""
    ranks, name, line = culprit.ranks, operation(culprit), user_frame(culprit.frames)
    spot = place(line.filename, line.line) if line else ""
    return SAID[culprit.kind].format(
        ranks=who(ranks),
        name=name,
        detail=culprit.detail,
        be=verb(ranks, "is", "are"),
        lag=verb(ranks, "lags", "lag"),
        order="wait for each other in a ring" if len(ranks) > 1 else "took its groups in another order than the others",
        have=verb(ranks, "has", "have"),
        where=f" in {line.name} ({spot})" if line else " outside of any collective",
        at=f" at {spot}" if line else "",
        went_on=f" and went on to {spot}" if line else "",
        before=f" before {name}" if name else "",
    )


def sentence(culprit: Culprit) -> str:
    """The title, and who suffers."""
    hurt = culprit.victims
    if not hurt or culprit.kind == "unknown":
        return title(culprit)
    whom = "it" if len(culprit.ranks) == 1 else "them"
    return f"{title(culprit)}; {who(hurt)} {verb(hurt, 'waits', 'wait')} for {whom}"


def operation(culprit: Culprit) -> str:
    """`all_reduce #412 of dp`."""
    if culprit.seq is None:
        return ""
    return f"{culprit.operation or 'operation'} #{culprit.seq} of {culprit.group_desc}"


def finding_of(culprit: Culprit, evidence: list[Evidence]) -> Finding:
    severity = {"slow": Severity.WARNING, "unknown": Severity.INFO}.get(culprit.kind, Severity.ERROR)
    return Finding(
        id=f"hang.{culprit.kind}",
        severity=severity,
        title=title(culprit),
        why=sentence(culprit)
        + (f" ({culprit.detail})" if culprit.detail and culprit.detail not in title(culprit) else ""),
        next=NEXT[culprit.kind],
        ranks=culprit.ranks,
        step=culprit.step,
        evidence=evidence,
        confidence=culprit.confidence,
    )


def titles(culprits: Sequence[Culprit]) -> list[str]:
    """What each culprit did."""
    return [title(culprit) for culprit in culprits]
