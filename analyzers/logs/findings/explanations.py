"""Write the explanation of a cause: the evidence for it, and why the other failures are its consequences."""

import msgspec

from analyzers.case.facts import EventKind, LogClass, LogEvent, RankLog, Reason
from analyzers.case.hypothesis import Answer, Basis, Blame, Case, Hypothesis, Tier
from analyzers.case.wording import first_with, place, quoted, who
from analyzers.logs.answers.failures import handled_errors
from analyzers.logs.loading import Logs, is_of_one_rank
from analyzers.logs.reading.roster import UNRANKED
from analyzers.report import Evidence
from analyzers.words import capitalised, quantity, rank_names, size

EVIDENCE_AT_MOST, _LAST_LINES_AT_MOST = 6, 8
_LINE_LENGTH = 160
_BASES = {
    Basis.NAMED: "PyTorch's message names the ranks that did not join the collective",
    Basis.BEHIND: "the other ranks enqueued more operations of this process group",
    Basis.OTHER_OPERATION: "the operations that timed out differ in their name, size or sequence number",
    Basis.OTHER_LINE: "all ranks that the logs show gave up in a collective, but not at the same line",
    Basis.MESSAGES: "a send completes only with its recv, and all ranks that the logs show gave up waiting",
    Basis.STACKS: "the stacks of {waiting} are in a collective, and that of {ranks} is not",
    Basis.CAUGHT: "only {ranks} reported an error before, went on, and ended while the other ranks waited",
    Basis.SILENT: "{waiting} reported a timeout or a lost connection, and no such line of {ranks} is in these logs",
    Basis.NOT_LISTED: "torchrun's table of failures lists all ranks but {ranks}, whose exit code was therefore 0",
    Basis.LEFT_ALONE: "torchrun's table of failures lists no other rank, so the exit code of the others was 0",
    Basis.THREADS: "threads of one process run in any order, and logs do not show on which rank it differs",
    Basis.ALONE: "only this rank waits, and its log says that the training had ended before",
    Basis.EXTRA_OPERATION: "all other ranks finished the operations before, and stopped there",
    Basis.FIRST_OPERATION: "no operation of the process group had completed before, so no single rank is to blame",
    Basis.ALL_WAIT: "each rank that the logs show reports this operation",
    Basis.MOST_SILENT: "logs cannot tell whether the other ranks did not join the collective, or were ended while they"
    " waited elsewhere",
    Basis.LATE: "logs cannot tell whether the other ranks came too late, or waited too and were disconnected",
    Basis.ONE_SIDE: "this text shows which ranks waited, but not for which rank",
}
_WITHOUT_DUMPS = (
    Basis.ONE_SIDE, Basis.LATE, Basis.MOST_SILENT, Basis.SILENT, Basis.ALL_WAIT, Basis.NOT_LISTED, Basis.LEFT_ALONE,
    Basis.THREADS,
)  # fmt: skip
"""The kinds of evidence that leave doubts which dumps of Flight Recorder would remove."""
ENDED_OUTSIDE = (LogClass.TERMINATED, LogClass.TIME_LIMIT)
"""The classes of verdicts on jobs that ended without being caused by a rank."""
_FEWER_STEPS = (
    "{ranks} printed fewer steps than {waiting}, and no error; logs cannot tell what else the silent ranks did"
)
_NO_CULPRIT = (
    "a connection breaks when the rank at its other end ends or aborts, or the network drops it; no line of these logs"
    " shows which"
)
_CAUGHT_OR_NOT = (
    "PyTorch prints `[rank0]:` before the lines of an uncaught exception, and torchrun reports the process that it"
    " ends; these logs have neither"
)
_SAME_ON_ALL = (
    "all ranks in the log failed in the same way, so the cause is something that they share, such as the configuration,"
    " rather than one rank"
)
_EITHER_OF_TWO = (
    "PyTorch's message says that the other rank did not join the collective. But with two ranks it may also be this"
    " one that called one collective too many"
)


def explain(mechanism: str, case: Case, answer: Answer, logs: Logs) -> str:
    """Return the sentences on why `case` is assumed to be the cause of the job's end.

    `mechanism` is the clause of the catalogue on what such a failure means.
    """
    parts = [
        mechanism,
        _basis_of(case, logs),
        numbers_of(case),
        chain_of(case),
        _survived_before(case, logs),
        _consequences_of(answer),
        _root_cause_of(case, logs),
        _doubt_of_rank(case, logs),
    ]
    return " ".join(f"{capitalised(part)}." for part in parts if part)


def _basis_of(case: Case, logs: Logs) -> str:
    """Return a clause on the evidence that shows the cause or the ranks to blame."""
    if case.kind is LogClass.UNKNOWN:
        return _unknown_basis(case)
    if not case.blame:
        return _SAME_ON_ALL if _is_everywhere(case, logs) else _driver_report(case, logs)
    text = _basis_text(case, case.blame)
    last = next((logs.ranks[r] for r in case.ranks if r in logs.ranks and logs.ranks[r].last_line), None)
    if last and case.blame.basis in (Basis.SILENT, Basis.BEHIND, Basis.NOT_LISTED):
        return f"{text}; {last_line(last)}"
    return text


def _basis_text(case: Case, blame: Blame) -> str:
    """Return the clause of `_BASES` on why ranks are to blame, or why no rank is, with the ranks filled in."""
    text = _BASES[blame.basis]
    if blame.basis is Basis.NAMED and not case.ranks:
        text = _EITHER_OF_TWO
    if blame.basis is Basis.MOST_SILENT and case.ranks:
        text = _FEWER_STEPS
    if blame.basis is Basis.ALL_WAIT and case.reason is Reason.MISSING_RANKS:
        text = "all ranks that the logs show wait for the missing ones"
    return text.format(ranks=who(case.ranks), waiting=who(blame.waiting, "the other ranks"))


def _unknown_basis(case: Case) -> str:
    """Return a clause on why the cause stays unknown."""
    if case.lead.kind is EventKind.EXCEPTION:
        return _CAUGHT_OR_NOT
    is_open = case.blame is not None and case.blame.basis is Basis.MOST_SILENT
    return _BASES[Basis.MOST_SILENT] if is_open else _NO_CULPRIT


def _driver_report(case: Case, logs: Logs) -> str:
    """Return a clause on the Xid (error number) by which NVIDIA's driver reported the same error; empty without it."""
    if case.lead.kind is not EventKind.CUDA_ERROR:
        return ""
    xid = next((event.facts.xid for event in logs.events if event.facts.reason is Reason.XID_SOFTWARE), None)
    return "" if xid is None else f"the GPU's driver reported it, too, as an error that programs can cause (Xid {xid})"


def _is_everywhere(case: Case, logs: Logs) -> bool:
    """Return whether all ranks that the logs show, and more than one, are to blame for this cause."""
    ranks = set(case.ranks)
    # The number of a rank shows that all lower ones exist, too.
    is_whole = len(ranks) > 1 and ranks == set(range(max(ranks) + 1)) and len(ranks) >= (logs.world_size or 0)
    return is_whole and set(logs.ranks) <= ranks and len({event.attempt for event in case.failure.events}) == 1


def numbers_of(case: Case) -> str:
    """Return a phrase on how many steps were skipped because of fp16 overflows before the failure; empty if none."""
    skips = [e for e in case.failure.events if e.kind is EventKind.OVERFLOW_SKIP]
    count = quantity(sum(e.count for e in skips), "skipped step")
    return f"{count}{'' if case.lead in skips else ' before'}" if skips else ""


def _memory_of(case: Case) -> list[Evidence]:
    """Return evidence with the sizes in an out-of-memory message: of the device, and of this process.

    The list is empty for other causes, and if the message has no sizes.
    """
    if case.kind is not LogClass.OOM:
        return []
    lead = first_with(case, "requested_bytes")
    facts = lead.facts
    device = (
        ("in total", facts.total_bytes), ("free", facts.free_bytes), ("used by this process", facts.process_bytes),
        ("used by other processes", sum(facts.other_processes) or None),
    )  # fmt: skip
    process = (
        ("allocated by tensors", facts.allocated_bytes),
        ("reserved, but not allocated", facts.unallocated_bytes),
    )
    parts = (("memory of the device", device), ("PyTorch's part of this process", process))
    texts = [
        f"{name}: {', '.join(f'{size(value)} {what}' for what, value in sizes if value is not None)}"
        for name, sizes in parts
        if any(value is not None for _, value in sizes)
    ]
    return [Evidence(text=text, source=f"{lead.path}:{lead.line}") for text in texts]


def chain_of(case: Case) -> str:
    """Return a sentence that quotes the first of the exceptions that led to the cause's exception.

    Python prints such exceptions before it, with `During handling of the above exception, ...`. The text is empty if
    there are none.
    """
    # What the training process notices of a worker that was killed did not kill it.
    chain = () if case.kind is LogClass.DATALOADER_WORKER else case.lead.chain
    return f"An earlier exception led to it: {chain[0].splitlines()[0][:200]}" if chain else ""


def _survived_before(case: Case, logs: Logs) -> str:
    """Return a clause on an earlier error that a rank to blame reported and survived; empty if there is none.

    The error may also have ended one of the rank's threads.
    """
    if not case.blame or case.caught:
        return ""
    error = next((e for e in handled_errors(logs) if e.rank is not None and e.rank in case.ranks), None)
    if error is None:
        return ""
    whose = f"thread {error.facts.thread} of {rank_names(case.ranks)}" if error.facts.thread else ""
    return f"{whose or f'rank {error.rank}'} reported before: {quoted(error)}{place(error)}"


_WAITS_IN_VAIN = (
    Tier.TIMEOUT, Tier.STUCK_WATCHDOG, Tier.LOST_CONNECTION, Tier.ABORTED, Tier.NETWORK, Tier.UNREACHED,
    Tier.NAMED_BY_OTHERS,
)  # fmt: skip


def follows(other: Hypothesis, case: Case) -> bool:
    """Return whether another failure is said to be a usual consequence of the cause.

    It is one by which ranks notice that others are gone, and not the end of an earlier run in the same text.
    """
    lead = case.lead
    is_earlier = all(event.path == lead.path and event.line < lead.line for event in other.events)
    return other.role.tier in _WAITS_IN_VAIN and not is_earlier


def _consequences_of(answer: Answer) -> str:
    """Return a clause that names the other ranks, which report only consequences of the cause; empty without any."""
    if answer.case is None:
        return ""
    ranks = sorted({rank for one in answer.explained if follows(one, answer.case) for rank in one.ranks})
    if not ranks or set(ranks) <= set(answer.case.ranks):
        return ""
    others = [rank for rank in ranks if rank not in answer.case.ranks]
    if not others:
        return ""
    # A process that ended before breaks its connections, too, so that this failure may itself be a consequence.
    if answer.case.kind is LogClass.NETWORK:
        return f"the errors of {rank_names(others)} follow from this failed connection, or from the cause of both"
    return f"the errors of {rank_names(others)} are usual consequences of it"


def _root_cause_of(case: Case, logs: Logs) -> str:
    """Return a clause if torchrun's "Root Cause" names a rank other than those to blame; else an empty text.

    The clause explains that torchrun only names the rank with the earliest time stamp.
    """
    roots = sorted({e.rank for e in logs.events if e.kind is EventKind.TORCHRUN_ROOT_CAUSE and e.rank is not None})
    if not roots or not case.ranks or set(roots) & set(case.ranks):
        return ""
    first = "the process of that rank was the first to end with an error"
    return f'torchrun\'s "Root Cause" names {rank_names(roots)} only because {first}'


def _doubt_of_rank(case: Case, logs: Logs) -> str:
    """Return a clause which warns that the named rank is right only if the job has one node; empty if it is certain.

    The log may give only a local rank, which equals the global rank only on the first node.
    """
    tables = (EventKind.TORCHRUN_FAILURE, EventKind.TORCHRUN_ROOT_CAUSE)
    local = case.lead.facts.local_rank
    if case.lead.kind is not EventKind.EXIT or local is None or any(e.kind in tables for e in logs.events):
        return ""
    return f"the log gives only the local rank: {rank_names(case.ranks)} is right if the job has one node"


def evidence(case: Case, logs: Logs) -> list[Evidence]:
    """Return the events that show the cause as evidence, one per rank; for a mismatch a rank to blame comes first.

    If ranks waited and no rank can be blamed, the last line that each rank printed follows.
    """
    own = [event for event in case.failure.events if event.rank in case.ranks]
    chosen: list[LogEvent] = own[:1] if case.kind is LogClass.MISMATCH and own else [case.lead]
    for event in (*case.caught, *case.failure.events, *case.killed):
        if event not in chosen and event.rank not in {e.rank for e in chosen}:
            chosen.append(event)
    shown = [evidence_of(event) for event in chosen[:EVIDENCE_AT_MOST]]
    if len({fact.text for fact in shown}) < len(shown):
        # Not strict: there may be more events than are shown.
        shown = [_with_rank(fact, event) for fact, event in zip(shown, chosen, strict=False)]
    return [*_memory_of(case), *shown, *last_lines(case, logs), *last_steps(case, logs)]


def _with_rank(fact: Evidence, event: LogEvent) -> Evidence:
    """Return `fact` with its rank before the text, because several ranks may have printed the same message."""
    return fact if event.rank is None else msgspec.structs.replace(fact, rank=event.rank)


def last_lines(case: Case, logs: Logs) -> list[Evidence]:
    """Return the last line of each rank as evidence, if ranks waited and nothing shows for which rank they waited.

    The list is empty otherwise.
    """
    is_open = case.blame is not None and not case.ranks
    shown = [log for rank, log in sorted(logs.ranks.items()) if log.last_line] if is_open else []
    return [Evidence(text=last_line(log), source=log.path) for log in shown[:_LAST_LINES_AT_MOST]]


def last_steps(case: Case, logs: Logs) -> list[Evidence]:
    """Return the last line with a step before a job was ended from outside, from the rank with the highest step.

    If the last step of another rank is lower, its line follows. The list is empty for other causes.
    """
    trained = [log for log in (*logs.ranks.values(), *logs.unranked) if log.last_step is not None and log.step_line]
    if case.kind not in ENDED_OUTSIDE or not trained:
        return []
    furthest, least = (choose(trained, key=lambda log: log.last_step or 0) for choose in (max, min))
    shown = [furthest] if furthest.last_step == least.last_step else [furthest, least]
    return [
        Evidence(text=f"last step before the end{whose(log)}: {log.step_line[:_LINE_LENGTH]}", source=log.step_source)
        for log in shown
    ]


def whose(log: RankLog) -> str:
    """Return the rank of a log in parentheses, after a space; empty if the log shows none."""
    return "" if log.rank == UNRANKED else f" (rank {log.rank})"


def last_line(log: RankLog) -> str:
    """Return a sentence that quotes the last line of a rank, with its step if the log has one."""
    step = f" (step {log.last_step})" if log.last_step is not None else ""
    # In a console that ranks share, only some lines name their rank.
    which = "last line" if is_of_one_rank(log.path) else "last line marked as that"
    return f"the {which} of rank {log.rank}{step} is: {log.last_line.strip()[:_LINE_LENGTH]}"


def evidence_of(event: LogEvent) -> Evidence:
    """Return an event as evidence: its first line, its position in the log, and the user's source line."""
    return Evidence(text=quoted(event) or event.kind, source=f"{event.path}:{event.line}", line=event.source)


def missing(answer: Answer, logs: Logs) -> list[str]:
    """Return texts that name the evidence that is missing in the logs for a more certain verdict."""
    case = answer.case
    lacks = [f"{file.path}: {file.problem}" for file in logs.files if file.problem]
    lacks += [f"{size(f.skipped_bytes)} in the middle of {f.path}" for f in logs.files if f.skipped_bytes]
    if case is None:
        return lacks
    if case.blame and case.blame.basis in _WITHOUT_DUMPS:
        lacks.append("Flight Recorder dumps of all ranks, which show what each rank waits in")
    if case.kind is LogClass.EXIT_CODE or case.reason is Reason.MISSING_RANKS:
        lacks.append("the stderr of the ranks that failed")
    return lacks
