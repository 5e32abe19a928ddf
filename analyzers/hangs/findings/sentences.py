"""Culprits as sentences and findings."""

from collections.abc import Sequence

from analyzers.hangs.model import Culprit, user_frame
from analyzers.report import Evidence, Finding, Severity
from analyzers.words import agree, rank_names, source_line

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
    "unknown": "collect the dumps of all ranks; of several nodes, give all their folders at once",
}


SAID = {
    "dead": "{ranks} {be} gone{step} ({detail}){before}",
    "host_stuck": "{ranks} {be} stuck{step}{where} and never {joined} {name}",
    "skipped": "{ranks} skipped {name}{step}{went_on}",
    "mismatch": "{ranks} issued a mismatched {name}{step}: {detail}{at}",
    "order_cycle": "{ranks} {order}{step}: {detail}",
    "all_arrived": "{ranks} {be} all in {name}{step}, which does not complete",
    "lagging": "{ranks} {lag} behind in {name}{step}: {detail}",
    "slow": "{ranks} {be} slow, not stuck{step}{where}: {detail}",
    "unmatched_p2p": "{ranks} {have} no partner for a send or recv{step}{where}: {detail}",
    "unknown": "nothing is known of {ranks}: {detail}",
}
WHY = {
    "dead": "{end}, and {name} needs {whom}: it can never complete",
    "host_stuck": "{name} needs {whom}, and the process of {ranks} is alive but runs its own code instead",
    "skipped": "{name} needs every member, and {ranks} went by it to what comes later",
    "mismatch": "members must bring the same operation, type and shape; what {ranks} brought matches nothing, so"
    " {name} never completes for the others",
    "order_cycle": "the operation of each group needs ranks that stand in the operation of another group, so none of"
    " them can complete",
    "all_arrived": "every member has issued {name}, so it is the transport or a device that does not move, not a line"
    " of the program",
    "lagging": "others have completed {name}, so the data arrived there; the lagging ranks hold back all that follows",
    "slow": "between two looks they went on, so the others will get what they wait for, late",
    "unmatched_p2p": "a send completes only with its recv, and the other half was not issued",
    "unknown": "ranks without a dump may be the cause as well as its victims",
}
ENDS = {
    "oom": "an allocation that failed ended its process",
    "error": "an uncaught {error} ended its process",
    "": "its process ended without a word from Python",
}
NEXT_OF_DEAD = {
    "oom": "look at what filled the memory of the rank; the others only wait for it",
    "error": "mend what raises this error at the line above; the others only wait for it",
}


def ending(culprit: Culprit) -> str:
    """How a dead rank ended: `oom`, `error` (an exception), or empty where no exception was seen."""
    return "oom" if culprit.out_of_memory else "error" if culprit.error else ""


def title(culprit: Culprit) -> str:
    """What the culprit did: `rank 3 is stuck at step 6 in tokenize (data/text.py:41) and never joined all_reduce #412
    of dp`.
    """
    ranks, name, line = culprit.ranks, operation(culprit), user_frame(culprit.frames)
    step = f" at step {culprit.step}" if culprit.step is not None else ""
    spot = source_line(line.filename, line.line) if line else ""
    if culprit.out_of_memory:
        return f"{rank_names(ranks)} ran out of memory{step}" + (f" in {line.name} ({spot})" if line else "")
    return SAID[culprit.kind].format(
        ranks=rank_names(ranks),
        name=name,
        step=step,
        detail=culprit.detail,
        be=agree(ranks, "is", "are"),
        lag=agree(ranks, "lags", "lag"),
        order="wait for each other in a ring" if len(ranks) > 1 else "took its groups in another order than the others",
        have=agree(ranks, "has", "have"),
        where=f" in {line.name} ({spot})" if line else " outside of any collective",
        at=f" at {spot}" if line else "",
        went_on=f" and went on to {spot}" if line else "",
        before=f" before {name}" if name else "",
        joined="issued the other half of" if is_message(culprit) else "joined",
    )


def why(culprit: Culprit) -> str:
    """The mechanism by which the culprit stops the others, and what else is known of it."""
    name = operation(culprit) or "what the others wait in"
    end = ENDS[ending(culprit)].format(error=culprit.error)
    whom = "its other half" if is_message(culprit) else "every member"
    text = WHY[culprit.kind].format(ranks=rank_names(culprit.ranks), name=name, end=end, whom=whom)
    told = not culprit.detail or culprit.out_of_memory or culprit.detail in title(culprit)
    return text if told else f"{text} ({culprit.detail})"


def sentence(culprit: Culprit) -> str:
    """The title, and who suffers."""
    hurt = culprit.victims
    if not hurt:
        return title(culprit)
    whom = "it" if len(culprit.ranks) == 1 else "them"
    return f"{title(culprit)}; {rank_names(hurt)} {agree(hurt, 'waits', 'wait')} for {whom}"


def operation(culprit: Culprit) -> str:
    """`all_reduce #412 of dp`."""
    if culprit.seq is None:
        return ""
    number = "" if is_message(culprit) else f" #{culprit.seq}"
    return f"{culprit.operation or 'operation'}{number} of {culprit.group_desc}"


def is_message(culprit: Culprit) -> bool:
    """Whether it is about a send or recv."""
    return (culprit.operation or "").startswith(("send ", "recv "))


def finding_of(culprit: Culprit, evidence: list[Evidence]) -> Finding:
    severity = {"slow": Severity.WARNING, "unknown": Severity.WARNING}.get(culprit.kind, Severity.ERROR)
    return Finding(
        id=f"hang.{culprit.kind}",
        severity=severity,
        title=title(culprit),
        why=why(culprit),
        next=NEXT_OF_DEAD.get(ending(culprit), NEXT[culprit.kind]),
        ranks=culprit.ranks,
        step=culprit.step,
        evidence=evidence,
        confidence=culprit.confidence,
    )


def titles(culprits: Sequence[Culprit]) -> list[str]:
    """What each culprit did."""
    return [title(culprit) for culprit in culprits]
