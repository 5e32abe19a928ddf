"""Write the explanation of a cause: the evidence for it, and why the other failures are its consequences."""

from collections.abc import Mapping

import msgspec

from analyzers.case.facts import EventKind, LogClass, LogEvent, RankLog, Reason
from analyzers.case.hypothesis import Answer, Basis, Blame, Cause
from analyzers.logs.answers.failures import handled_errors
from analyzers.logs.findings.wording import first_with, place, quoted, who
from analyzers.logs.loading import Logs, unread_count
from analyzers.logs.reading.roster import UNRANKED
from analyzers.report import Evidence
from analyzers.words import quantity, rank_names, size

EVIDENCE_AT_MOST, _LAST_LINES_AT_MOST = 6, 8
_LINE_LENGTH = 160
_BASES = {
    Basis.NAMED: "PyTorch's message names the ranks that did not join the collective",
    Basis.BEHIND: "the other ranks enqueued more operations of this process group",
    Basis.OTHER_OPERATION: "the ranks wait in different operations that have the same sequence number",
    Basis.OTHER_LINE: "all ranks that the logs show gave up in a collective, but not at the same line",
    Basis.MESSAGES: "a send completes only with its recv, and all ranks that the logs show gave up waiting",
    Basis.STACKS: "the stacks of {waiting} are in a collective, and that of {ranks} is not",
    Basis.CAUGHT: "only {ranks} reported an error before, went on, and ended while the other ranks waited",
    Basis.SILENT: "{waiting} reported a timeout or a lost connection, and {ranks} printed no error",
    Basis.NOT_LISTED: "torchrun's table of failures lists all ranks but {ranks}, whose exit code was therefore 0",
    Basis.LEFT_ALONE: "torchrun's table of failures lists no other rank, so the exit code of the others was 0",
    Basis.THREADS: "threads of one process run in any order, and logs do not show on which rank it differs",
    Basis.ALONE: "only this rank waits, and its log says that the training had ended before",
    Basis.EXTRA_OPERATION: "all other ranks finished the operations before, and stopped there",
    Basis.FIRST_OPERATION: "no operation of the process group had completed before, so no single rank is to blame",
    Basis.ALL_WAIT: "all ranks that the logs show wait in this operation, so none of them is to blame",
    Basis.MOST_SILENT: "logs cannot tell whether the other ranks did not join the collective, or were ended while they"
    " waited elsewhere",
    Basis.LATE: "logs cannot tell whether the other ranks came too late, or waited too and were disconnected",
    Basis.ONE_SIDE: "this log shows that this rank waited, but not for which rank",
}
_WITHOUT_DUMPS = (
    Basis.ONE_SIDE, Basis.LATE, Basis.MOST_SILENT, Basis.SILENT, Basis.ALL_WAIT, Basis.NOT_LISTED, Basis.LEFT_ALONE,
    Basis.THREADS,
)  # fmt: skip
"""The kinds of evidence that leave doubts which dumps of Flight Recorder would remove."""
_ALONE = "the logs show no other failure"
_NO_ERROR_BEFORE = "before it, the logs show no error of a rank that would explain the end"
ENDED_OUTSIDE = (LogClass.TERMINATED, LogClass.TIME_LIMIT)
"""The classes of verdicts on jobs that ended without being caused by a rank."""
SHOWN = "this is the first failure in the logs: no earlier line explains it"
_FEWER_STEPS = (
    "{ranks} printed fewer steps than {waiting}, and no error; logs cannot tell what else the silent ranks did"
)
_NO_CULPRIT = "the connection broke because a rank ended or aborted, and no line of these logs shows which"
_CAUGHT_OR_NOT = (
    "PyTorch prints `[rank0]:` before the lines of an uncaught exception, and torchrun reports the process that it"
    " ends; these logs have neither"
)
_SAME_ON_ALL = (
    "all ranks in the log failed in the same way, so the cause is something that they share, such as the configuration,"
    " rather than one rank"
)
_MECHANISMS: Mapping[LogClass, str] = {
    LogClass.HOST_OOM: "the kernel kills a process when the machine, or the job's limit, has no host memory left",
    LogClass.OOM: "a request for GPU memory was larger than what was free",
    LogClass.SIGNAL: "a signal ends a process without a Python exception",
    LogClass.DATALOADER_WORKER: "the training process fails when a worker of its DataLoader dies or delivers no"
    " batches",
    LogClass.MISMATCH: "all ranks of a process group must call the same collective with the same shapes",
    LogClass.UNUSED_PARAMETERS: "DDP waits in each step for a gradient of every parameter, and a parameter that takes"
    " no part in the loss gets none",
    LogClass.HARDWARE: "such a message comes from the driver, the network or the scheduler; the training program is not"
    " its cause",
    LogClass.DISK_FULL: "a write stopped before all bytes were written, as on a full disk or beyond a quota",
    LogClass.TIME_LIMIT: "the job was still running when its time was used up",
    LogClass.CRASHED: "an exception that nothing catches ends the process of its rank, and with it the job",
    LogClass.TERMINATED: "such a signal comes from outside the job: from its scheduler, a user or a shell that ends",
    LogClass.NONFINITE_LOSS: "once a NaN is in the loss, its gradients and the updated weights become NaN, too",
}
"""{class of a failure: a clause on what it means}, which precedes the evidence."""
_STARTUP_MECHANISMS: Mapping[Reason, str] = {
    Reason.PORT_IN_USE: "rank 0 opens this port for the store through which all ranks find each other",
    Reason.RENDEZVOUS_TIMEOUT: "torchrun starts no rank before all nodes have joined",
    Reason.UNREACHABLE_MASTER: "all ranks find each other through a store that rank 0 opens",
    Reason.NCCL_VERSIONS: "NCCL connects only ranks that use the same version of it",
    Reason.NO_INTERFACE: "NCCL connects the ranks through a network interface, which NCCL_SOCKET_IFNAME may name",
    Reason.DUPLICATE_GPU: "NCCL needs a GPU of its own for each rank of a process group",
    Reason.DRIVER: "a build of PyTorch needs an NVIDIA driver that supports its version of CUDA",
    Reason.NO_GPU: "the script asks for a GPU, and PyTorch finds none that it can use",
    Reason.BAD_ARGUMENTS: "the script ended when it read its arguments, before it trained",
    Reason.NO_SCRIPT: "Python was started with this path, and found no file there",
}
"""{reason of a failed start: a clause on what it means}, which precedes the evidence."""
_EITHER_OF_TWO = (
    "PyTorch's message says that the other rank did not join the collective. But with two ranks it may also be this"
    " one that called one collective too many"
)
_BY_DRIVER = (
    "PyTorch's own allocator would say how much it tried to allocate; this message is that of a CUDA call, most often"
    " of the first one that uses the GPU"
)
_BY_HOST = "PyTorch asked the system for this much host memory, and got none"
_LOST_DEVICE = "the GPU's driver no longer reaches the GPU over PCIe; the training program is not the cause"
_OTHER_MECHANISM = (
    Reason.HOST_ALLOCATOR, Reason.DRIVER_MEMORY, Reason.LIBRARY_MEMORY, Reason.XID_SOFTWARE, Reason.SCALE_EXHAUSTED,
)  # fmt: skip
"""The reasons to which the clause of their class in `_MECHANISMS` does not apply."""


def explain(cause: Cause, answer: Answer, logs: Logs) -> str:
    """Return the sentences on why `cause` is assumed to be the cause of the job's end."""
    parts = [
        _mechanism_of(cause),
        _basis_of(cause, answer, logs),
        numbers_of(cause),
        chain_of(cause),
        _survived_before(cause, logs),
        _consequences_of(answer),
        _root_cause_of(cause, logs),
        _doubt_of_rank(cause, logs),
    ]
    return " ".join(f"{part[0].upper()}{part[1:]}." for part in parts if part)


def _mechanism_of(cause: Cause) -> str:
    """Return a clause on the meaning of a failure's class or reason; empty if no explanation is needed."""
    if cause.reason is Reason.DRIVER_MEMORY:
        return _BY_DRIVER
    if cause.reason is Reason.FALLEN_OFF_BUS:
        address = cause.lead.facts.pci
        return _LOST_DEVICE + (f", and the lines above this message name its address, {address}" if address else "")
    if cause.reason is Reason.HOST_ALLOCATOR:
        return _BY_HOST
    if cause.kind is LogClass.CRASHED and cause.lead.kind is not EventKind.EXCEPTION:
        return ""
    if cause.kind is LogClass.STARTUP:
        return _STARTUP_MECHANISMS.get(cause.reason, "") if cause.reason else ""
    return _MECHANISMS.get(cause.kind, "") if cause.reason not in _OTHER_MECHANISM else ""


def _basis_of(cause: Cause, answer: Answer, logs: Logs) -> str:
    """Return a clause on the evidence that shows the cause or the ranks to blame."""
    if cause.kind is LogClass.UNKNOWN:
        return _unknown_basis(cause)
    if not cause.blame:
        return (
            _SAME_ON_ALL
            if _is_everywhere(cause, logs)
            else _driver_report(cause, logs) or _first_of(cause, answer, logs)
        )
    text = _basis_text(cause, cause.blame)
    last = next((logs.ranks[r] for r in cause.ranks if r in logs.ranks and logs.ranks[r].last_line), None)
    if last and cause.blame.basis in (Basis.SILENT, Basis.BEHIND, Basis.NOT_LISTED):
        return f"{text}; {last_line(last)}"
    return text


def _first_of(cause: Cause, answer: Answer, logs: Logs) -> str:
    """Return a clause on why a failure without ranks to blame is the cause; empty if other clauses explain it."""
    if cause.kind in ENDED_OUTSIDE:
        return _NO_ERROR_BEFORE
    if not answer.others:
        return "" if chain_of(cause) else _alone(logs)
    return "" if chain_of(cause) or _consequences_of(answer) else SHOWN


def _alone(logs: Logs) -> str:
    """Return the clause that no other failure was found, with what was not understood."""
    if not (count := unread_count(logs)):
        return _ALONE
    further = "line looks like an error" if count == 1 else "lines look like errors"
    return f"no other failure is understood: {count} further {further}"


def _basis_text(cause: Cause, blame: Blame) -> str:
    """Return the clause of `_BASES` on why ranks are to blame, or why no rank is, with the ranks filled in."""
    text = _BASES[blame.basis]
    if blame.basis is Basis.NAMED and not cause.ranks:
        text = _EITHER_OF_TWO
    if blame.basis is Basis.MOST_SILENT and cause.ranks:
        text = _FEWER_STEPS
    if blame.basis is Basis.ALL_WAIT and cause.reason is Reason.MISSING_RANKS:
        text = "all ranks that the logs show wait for the missing ones"
    return text.format(ranks=who(cause.ranks), waiting=who(blame.waiting, "the other ranks"))


def _unknown_basis(cause: Cause) -> str:
    """Return a clause on why the cause stays unknown."""
    if cause.lead.kind is EventKind.EXCEPTION:
        return _CAUGHT_OR_NOT
    is_open = cause.blame is not None and cause.blame.basis is Basis.MOST_SILENT
    return _BASES[Basis.MOST_SILENT] if is_open else _NO_CULPRIT


def _driver_report(cause: Cause, logs: Logs) -> str:
    """Return a clause on the Xid (error number) by which NVIDIA's driver reported the same error; empty without it."""
    if cause.lead.kind is not EventKind.CUDA_ERROR:
        return ""
    xid = next((event.facts.xid for event in logs.events if event.facts.reason is Reason.XID_SOFTWARE), None)
    return "" if xid is None else f"the GPU's driver reported it, too, as an error that programs can cause (Xid {xid})"


def _is_everywhere(cause: Cause, logs: Logs) -> bool:
    """Return whether all ranks that the logs show, and more than one, are to blame for this cause."""
    return len(cause.ranks) > 1 and set(logs.ranks) <= set(cause.ranks)


def numbers_of(cause: Cause) -> str:
    """Return a phrase on how many steps were skipped because of fp16 overflows before the failure; empty if none."""
    skips = [e for e in cause.failure.events if e.kind is EventKind.OVERFLOW_SKIP]
    return f"{quantity(sum(e.count for e in skips), 'skipped step')} before" if skips else ""


def _memory_of(cause: Cause) -> list[Evidence]:
    """Return evidence with the sizes in an out-of-memory message: of the device, and of this process.

    The list is empty for other causes, and if the message has no sizes.
    """
    if cause.kind is not LogClass.OOM:
        return []
    lead = first_with(cause, "requested_bytes")
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


def chain_of(cause: Cause) -> str:
    """Return a sentence that quotes the first of the exceptions that led to the cause's exception.

    Python prints such exceptions before it, with `During handling of the above exception, ...`. The text is empty if
    there are none.
    """
    # What the training process notices of a worker that was killed did not kill it.
    chain = () if cause.kind is LogClass.DATALOADER_WORKER else cause.lead.chain
    return f"An earlier exception led to it: {chain[0].splitlines()[0][:200]}" if chain else ""


def _survived_before(cause: Cause, logs: Logs) -> str:
    """Return a clause on an earlier error that a rank to blame reported and survived; empty if there is none.

    The error may also have ended one of the rank's threads.
    """
    if not cause.blame or cause.caught:
        return ""
    error = next((e for e in handled_errors(logs) if e.rank is not None and e.rank in cause.ranks), None)
    if error is None:
        return ""
    whose = f"thread {error.facts.thread} of {rank_names(cause.ranks)}" if error.facts.thread else ""
    return f"{whose or f'rank {error.rank}'} reported before: {quoted(error)}{place(error)}"


def _consequences_of(answer: Answer) -> str:
    """Return a clause that names the other ranks, which report only consequences of the cause; empty without any."""
    ranks = sorted({rank for failure in answer.others for rank in failure.ranks})
    if not ranks or answer.cause is None or set(ranks) <= set(answer.cause.ranks):
        return ""
    others = [rank for rank in ranks if rank not in answer.cause.ranks]
    if not others:
        return ""
    # A process that ended before breaks its connections, too, so that this failure may itself be a consequence.
    if answer.cause.kind is LogClass.NETWORK:
        return f"the errors of {rank_names(others)} follow from this failed connection, or from the cause of both"
    return f"the errors of {rank_names(others)} follow from this failure"


def _root_cause_of(cause: Cause, logs: Logs) -> str:
    """Return a clause if torchrun's "Root Cause" names a rank other than those to blame; else an empty text.

    The clause explains that torchrun only names the rank with the earliest time stamp.
    """
    roots = sorted({e.rank for e in logs.events if e.kind is EventKind.TORCHRUN_ROOT_CAUSE and e.rank is not None})
    if not roots or not cause.ranks or set(roots) & set(cause.ranks):
        return ""
    first = "the process of that rank was the first to end with an error"
    return f'torchrun\'s "Root Cause" names {rank_names(roots)} only because {first}'


def _doubt_of_rank(cause: Cause, logs: Logs) -> str:
    """Return a clause which warns that the named rank is right only if the job has one node; empty if it is certain.

    The log may give only a local rank, which equals the global rank only on the first node.
    """
    tables = (EventKind.TORCHRUN_FAILURE, EventKind.TORCHRUN_ROOT_CAUSE)
    local = cause.lead.facts.local_rank
    if cause.lead.kind is not EventKind.EXIT or local is None or any(e.kind in tables for e in logs.events):
        return ""
    return f"the log gives only the local rank: {rank_names(cause.ranks)} is right if the job has one node"


def evidence(cause: Cause, logs: Logs) -> list[Evidence]:
    """Return the events that show the cause as evidence, one per rank; for a mismatch a rank to blame comes first.

    If ranks waited and no rank can be blamed, the last line that each rank printed follows.
    """
    own = [event for event in cause.failure.events if event.rank in cause.ranks]
    chosen: list[LogEvent] = own[:1] if cause.kind is LogClass.MISMATCH and own else [cause.lead]
    for event in (*cause.caught, *cause.failure.events, *cause.killed):
        if event not in chosen and event.rank not in {e.rank for e in chosen}:
            chosen.append(event)
    shown = [evidence_of(event) for event in chosen[:EVIDENCE_AT_MOST]]
    if len({fact.text for fact in shown}) < len(shown):
        # Not strict: there may be more events than are shown.
        shown = [_with_rank(fact, event) for fact, event in zip(shown, chosen, strict=False)]
    return [*_memory_of(cause), *shown, *last_lines(cause, logs), *last_steps(cause, logs)]


def _with_rank(fact: Evidence, event: LogEvent) -> Evidence:
    """Return `fact` with its rank before the text, because several ranks may have printed the same message."""
    return fact if event.rank is None else msgspec.structs.replace(fact, text=f"rank {event.rank}: {fact.text}")


def last_lines(cause: Cause, logs: Logs) -> list[Evidence]:
    """Return the last line of each rank as evidence, if ranks waited and nothing shows for which rank they waited.

    The list is empty otherwise.
    """
    is_open = cause.blame is not None and not cause.ranks
    shown = [log for rank, log in sorted(logs.ranks.items()) if log.last_line] if is_open else []
    return [Evidence(text=last_line(log), source=log.path) for log in shown[:_LAST_LINES_AT_MOST]]


def last_steps(cause: Cause, logs: Logs) -> list[Evidence]:
    """Return the last line with a step before a job was ended from outside, from the rank with the highest step.

    If the last step of another rank is lower, its line follows. The list is empty for other causes.
    """
    trained = [log for log in (*logs.ranks.values(), *logs.unranked) if log.last_step is not None and log.step_line]
    if cause.kind not in ENDED_OUTSIDE or not trained:
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
    return f"the last line of rank {log.rank}{step} is: {log.last_line.strip()[:_LINE_LENGTH]}"


def evidence_of(event: LogEvent) -> Evidence:
    """Return an event as evidence: its first line, its position in the log, and the user's source line."""
    return Evidence(text=quoted(event) or event.kind, source=f"{event.path}:{event.line}", line=event.source)


def missing(answer: Answer, logs: Logs) -> list[str]:
    """Return texts that name the evidence that is missing in the logs for a more certain verdict."""
    cause = answer.cause
    lacks = [f"{file.path}: {file.problem}" for file in logs.files if file.problem]
    lacks += [f"{size(f.skipped_bytes)} in the middle of {f.path}" for f in logs.files if f.skipped_bytes]
    if cause is None:
        return lacks
    if cause.blame and cause.blame.basis in _WITHOUT_DUMPS:
        lacks.append("Flight Recorder dumps of all ranks, which show what each rank waits in")
    if cause.kind is LogClass.EXIT_CODE or cause.reason is Reason.MISSING_RANKS:
        lacks.append("the stderr of the ranks that failed")
    return lacks
