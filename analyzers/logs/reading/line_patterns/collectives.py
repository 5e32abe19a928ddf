"""Define the patterns of log lines on collectives, such as those of NCCL's watchdog, of DDP and of gloo.

A desync report is a watchdog's comparison of all ranks after a timeout. DETAIL mode (TORCH_DISTRIBUTED_DEBUG=DETAIL)
compares the operations of ranks before they run.
"""

import re

from analyzers.case.facts import EventKind, Facts, Reason
from analyzers.logs.reading.line_patterns.pattern import Found, number, numbers, pattern, plain

GROUP = re.compile(r"\[PG (?:ID )?(\d+)(?: PG GUID ([^\s(]+))?(?:\s?\(([^)]*)\))? Rank (\d+)\]")
_FINGERPRINT = re.compile(r"OpType=([A-Z_]+?)(?=[,)]|$)(?:, TensorShape=\[([\d, ]*)\])?")


def group_of(text: str) -> tuple[str | None, int | None]:
    """Return (name of the process group in a line, rank within this group); a missing one of these is None."""
    match = GROUP.search(text)
    return (match[3] or match[1], number(match[4])) if match else (None, None)


def _timed_out(match: "re.Match[str]") -> Found:
    """Return the event that reports a collective that timed out, as NCCL's watchdog prints it.

    Old versions of PyTorch print the rank only in this line.
    """
    group, group_rank = group_of(match.string)
    facts = Facts(
        operation=match[3],
        input_elements=number(match[4]),
        output_elements=number(match[5]),
        timeout_ms=number(match[6]),
        waited_ms=number(match[7]),
        group_rank=number(match[1]) if group_rank is None else group_rank,
    )
    return Found(EventKind.WATCHDOG_TIMEOUT, facts, None, group, number(match[2]))


def _abridged(match: "re.Match[str]") -> Found:
    """Return the event of a collective that timed out, of a report that somebody has shortened."""
    facts = Facts(operation=match[2], waited_ms=number(match[3]) if match[3] else None)
    return Found(EventKind.WATCHDOG_TIMEOUT, facts, None, None, number(match[1]) if match[1] else None)


def progress(match: "re.Match[str]") -> Found:
    """Return the event for the progress of a process group, as NCCL's watchdog prints it.

    Its facts have the sequence numbers of the last enqueued and the last completed collective.
    """
    group, group_rank = group_of(match.string)
    facts = Facts(enqueued=number(match[1]), completed=int(match[2][:18]), group_rank=group_rank)
    work = re.search(r"(?:at NCCL work|at work|sequence id): (\d{1,18})", match.string)
    return Found(EventKind.WATCHDOG_STATUS, facts, None, group, number(work[1]) if work else None)


def heartbeat(match: "re.Match[str]") -> Found:
    """Return the event which reports that NCCL's watchdog thread is stuck, and for how long if the line says so."""
    group, group_rank = group_of(match.string)
    waited = number(match[1]) if match.lastindex else None
    facts = Facts(waited_ms=waited and waited * 1000, group_rank=group_rank)
    return Found(EventKind.HEARTBEAT, facts, None, group)


def lagging(match: "re.Match[str]") -> Found:
    """Return the event of a line in a desync report that names lagging ranks, with these ranks.

    A desync report is a watchdog's comparison of all ranks after a timeout.
    """
    named = re.search(r"#(\d{1,12})", match.string[match.end(1) :])
    return Found(EventKind.DESYNC, Facts(ranks=numbers(match[1])), seq=number(named[1]) if named else None)


def _desync_operation(match: "re.Match[str]") -> Found:
    """Return the event of a line in a desync report which says in which operation one rank timed out.

    A desync report is a watchdog's comparison of all ranks after a timeout.
    """
    return Found(EventKind.DESYNC, Facts(operation=match[2]), number(match[1]), None, number(match[3]))


def fingerprints(match: "re.Match[str]") -> Found:
    """Return the event which reports that the collectives of two ranks differ, as PyTorch's debug mode prints it.

    The first rank in `facts.ranks` has printed it.
    """
    mine, theirs = _FINGERPRINT.search(match[2]), _FINGERPRINT.search(match[4])
    facts = Facts(
        reason=Reason.FINGERPRINTS,
        ranks=[int(match[1]), int(match[3])],
        operation=described(mine),
        other_operation=described(theirs),
    )
    seq = re.search(r"SequenceNumber=(\d{1,12})", match[2])
    return Found(EventKind.MISMATCH, facts, int(match[1]), None, number(seq[1]) if seq else None)


def described(match: "re.Match[str] | None") -> str | None:
    """Return an operation with its shape, such as `ALLREDUCE [8]`, from a match of `_FINGERPRINT`; None without one."""
    if not match:
        return None
    return match[1] + (f" [{match[2]}]" if match[2] else "")


def _missed_barrier(match: "re.Match[str]") -> Found:
    """Return the event of a monitored barrier's error, with the ranks that did not join according to rank 0."""
    facts = Facts(ranks=numbers(match[1]), timeout_ms=number(match[2]), operation="monitored_barrier")
    return Found(EventKind.MONITORED_BARRIER, facts)


_NAMES_LENGTH = 200


def unused(match: "re.Match[str]") -> Found:
    """Return the event which reports that parameters got no gradient on a rank, with their names."""
    names = match[2].strip()
    if len(names) > _NAMES_LENGTH:  # a part of a name or a number is none
        names = f"{names[:_NAMES_LENGTH].rpartition(' ')[0]} …"
    return Found(EventKind.UNUSED_PARAMETERS, Facts(ranks=[int(match[1])], name=names), int(match[1]))


def _gloo_timeout(match: "re.Match[str]") -> Found:
    facts = Facts(timeout_ms=number(match[1]))
    return Found(EventKind.TIMEOUT, facts)


def _sizes_differ(match: "re.Match[str]") -> Found:
    """Return the event that reports a rank that received more bytes than its buffer holds."""
    facts = Facts(reason=Reason.SIZES, input_elements=number(match[1]), output_elements=number(match[2]))
    return Found(EventKind.MISMATCH, facts)


def _different_models(match: "re.Match[str]") -> Found:
    """Return the event that reports two ranks whose models have different parameters."""
    return Found(EventKind.MISMATCH, Facts(reason=Reason.MODELS, ranks=[int(match[1]), int(match[2])]))


LOST = EventKind.CONNECTION_LOST
PATTERNS = (
    pattern(
        "caught collective operation timeout",
        r"\[Rank (\d{1,9})\] Watchdog caught collective operation timeout: WorkNCCL\((?:SeqNum=(\d+), )?OpType=(\w+)"
        r"(?:, NumelIn=(\d+), NumelOut=(\d+))?, Timeout\(ms\)=(\d+)\) ran for (\d+) milliseconds",
        _timed_out,
    ),
    pattern(
        "caught collective operation timeout",
        r"caught collective operation timeout: WorkNCCL\((?:[^)]{0,60}?SeqNum=(\d{1,12}))?[^)]{0,80}?OpType=(\w+)"
        r"(?:[^\n]{0,160}?ran for (\d{1,12}) (?:milliseconds|ms)\b)?",
        _abridged,
    ),
    pattern(
        "ast enqueued",
        r"[Ll]ast enqueued (?:NCCL )?work: (\d+), last completed (?:NCCL )?work: (-?\d+)",
        progress,
    ),
    pattern("watchdog got stuck", r"watchdog got stuck for (\d+) seconds", heartbeat),
    pattern("Heartbeat monitor timed out", r"Heartbeat monitor timed out", heartbeat),
    pattern("watchdog hang", r"due to ProcessGroupNCCL watchdog hang", heartbeat),
    pattern("Timeout at collective", r"\[(\d{1,9})\] Timeout at collective: (\w+), #(\d+)", _desync_operation),
    pattern("but didn't", r"\[([\d, ]+)\] (?:joined but didn't finish|finished collective #\d+, but didn't)", lagging),
    pattern("lagging ranks", r"ranks \[([\d, ]+)\] are the lagging ranks", lagging),
    pattern(
        "mismatch between collectives",
        r"Rank (\d{1,9}) is running (?:inconsistent )?collective: CollectiveFingerPrint\((.*?)\),? but Rank (\d{1,9})"
        r" is running (?:inconsistent )?collective: CollectiveFingerPrint\((.*)",
        fingerprints,
    ),
    pattern(
        "failed to pass monitoredBarrier",
        r"Ranks? ([\d, ]+) failed to pass monitoredBarrier(?: in (\d+) ms)?",
        _missed_barrier,
    ),
    plain("but received errors while waiting for", LOST, Reason.PEER_GONE),
    pattern("did not receive grad for rank", r"did not receive grad for rank (\d{1,9}): (.{1,400})", unused),
    plain("Stack trace of the failed collective:", EventKind.WATCHDOG_STATUS),
    plain("Expected to have finished reduction in the prior iteration", EventKind.UNUSED_PARAMETERS),
    pattern(
        "DDP expects same model",
        r"but Rank (\d{1,9}) has \d+ params, while rank (\d{1,9}) has inconsistent",
        _different_models,
    ),
    pattern("op.preamble.length", r"op\.preamble\.length <= op\.nbytes\.? (\d+) vs (\d+)", _sizes_differ),
    plain("Message truncated", EventKind.MISMATCH, Reason.SIZES, r"NCCL WARN Message truncated"),
    pattern("Timed out waiting", r"Timed out waiting (\d+)ms for (?:send|recv)", _gloo_timeout),
    plain("Application timeout caused pair closure", LOST, Reason.PEER_GONE),
    plain("Connection closed by peer", LOST, Reason.PEER_GONE),
    plain("Connection closed by remote peer", LOST, Reason.PEER_GONE),
    plain("remote process exited", LOST, Reason.PEER_GONE),
    # Python prints the number of the error, or quotes it: that is a connection of the program to something else.
    plain(
        "Connection reset by peer", LOST, Reason.PEER_GONE, r"(?<!\[Errno 104\] )Connection reset by peer(?!['\"]?\))"
    ),
    plain("Broken pipe", LOST, Reason.PEER_GONE, r"(?:Net|socket\w*|pair\.cc|gloo|TCPStore).*Broken pipe"),
    plain("recvValue failed", LOST, Reason.PEER_GONE),
    plain("sendBytes failed", LOST, Reason.PEER_GONE),
    plain("Socket recv failed while polling", LOST, Reason.PEER_GONE),
    plain("Failed to execute operation", LOST, Reason.PEER_GONE, r"\[Proxy Service.*Failed to execute operation"),
    plain("communicator was aborted on rank", LOST, Reason.PEER_GONE),
    plain("should dump", LOST, Reason.PEER_GONE, r"TCPStore server has shut down too early"),
    pattern(
        "dumping nccl trace to",
        r"dumping nccl trace to (\S{1,300})",
        lambda match: Found(EventKind.DUMP_WRITTEN, Facts(name=match[1])),
    ),
)
