"""Explain why a culprit stops the other ranks, with the evidence that distinguishes the culprit from them."""

from collections.abc import Callable

from analyzers.hangs.classify.blocks import Parting
from analyzers.hangs.classify.cause import Cause, HostState
from analyzers.hangs.findings.titles import both_sides, called_elsewhere, has_other_operation, message_halves
from analyzers.hangs.findings.wording import (
    choose_pronoun,
    format_block,
    format_ending,
    format_exception,
    is_host_memory,
    is_message,
    list_issued,
    list_waiting,
    name_operation,
    part_of_step,
    size_rule,
)
from analyzers.hangs.model import HangClass, Reason
from analyzers.hangs.reading.exits import Ending
from analyzers.hangs.reading.side_formats import ProcessState
from analyzers.words import agree, capitalised, rank_names, size

_MECHANISMS = {
    HangClass.HOST_STUCK: "the process of {ranks} is alive, but runs other code instead of joining. {name} completes"
    " only with {whom}, so the others wait",
    HangClass.SKIPPED: "{name} completes only when every member joins it, but {ranks} went on without it",
    HangClass.ORDER_CYCLE: "each rank waits in an operation that another of them has not reached, so none can complete",
    HangClass.LAGGING: "other members have completed {name}, which they could not without {ranks}. All later"
    " operations of the process group wait for {ranks}",
    HangClass.SLOW: "{ranks} went on, so the others only waited longer than usual",
    HangClass.UNMATCHED_P2P: "a send completes only with its recv, and one of the two was not issued",
    HangClass.UNKNOWN: "a rank without a dump may have caused the hang, or may only wait like the others",
}
_OTHER_GROUPS = (
    "every rank must create every process group, also those that it is not a member of. PyTorch numbers groups in the"
    " order of creation, and members find each other by that number"
)
_PROCESS_STATES = {
    ProcessState.STOPPED: "its process is stopped",
    ProcessState.IN_KERNEL: "its process waits inside a system call, as for storage that does not answer",
}


def why(cause: Cause) -> str:
    """Return why the culprit stops the other ranks, with the evidence that is not in the finding's title."""
    text = mechanism(cause)
    if cause.parting:
        text = f"{text}. {capitalised(_parting(cause.parting))}"
    evidence = _further_evidence(cause)
    if not evidence:
        return text
    named = cause.kind is HangClass.MISMATCH and cause.reason not in (Reason.TIE, Reason.ABORTED)
    because = f"{rank_names(cause.ranks)} {agree(cause.ranks, 'is', 'are')} named as the cause because {evidence}"
    return f"{text}. {capitalised(because if named else evidence)}"


def _parting(parting: Parting) -> str:
    """Return at which block of the source ranks parted, as a clause."""
    inside, outside = parting.inside, parting.outside
    there = f"{rank_names(inside)} {agree(inside, 'is', 'are')} in {format_block(parting.block)}"
    return f"{there}, {rank_names(outside)} {agree(outside, 'is', 'are')} not"


DEBUG_SERVER = "this server runs as long as the process does, so a refused connection means that the process has ended"
_MECHANISMS_OF_REASONS = {
    Reason.OTHER_GROUPS: _OTHER_GROUPS,
    Reason.DIFFERENT_TAGS: "a recv only takes a message with its own tag",
    Reason.SHUT_DOWN: "all other members are in this operation, which completes as soon as the last one joins. After"
    " the first failure a launcher ends the ranks that remain with SIGTERM, so the signal is no cause",
    Reason.AFTER_END: "all other ranks ended without an error, so no rank waits, and what the job had written is whole."
    " C++ aborts a process whose threads still run while it is taken down, such as those of gloo; the log then says"
    " `terminate called without an active exception`",
    Reason.KEPT_ALIVE: "Python waits for such threads before a process ends, and the launcher waits for the process",
}
"""{reason: how such a culprit stops the other ranks}, for reasons where this does not depend on the operation."""


def mechanism(cause: Cause) -> str:
    """Return, as a phrase, how the culprit stops the other ranks: what they need from the culprit and do not get."""
    if cause.reason in _MECHANISMS_OF_REASONS:
        return _MECHANISMS_OF_REASONS[cause.reason]
    name = name_operation(cause.culprit)
    whom = "the matching send or recv" if is_message(cause.culprit) else "every member"
    if cause.kind is HangClass.DEAD:
        needs = f"{name} can complete only with {whom}" if name else "their collectives need every rank"
        it = agree(cause.ranks, "it", "them")
        waiting = f". The ranks that wait for {it} cannot go on: {needs}" if cause.victims else ""
        # The title says it in the same words.
        in_title = cause.end is not None and cause.end.ending is Ending.CONNECTION_REFUSED
        return f"{DEBUG_SERVER if in_title else _end_of_process(cause)}{_growth(cause)}{waiting}"
    if cause.kind is HangClass.MISMATCH:
        return mismatch(cause)
    if cause.kind is HangClass.ALL_ARRIVED:
        who = "both ranks have" if cause.reason is Reason.BOTH_HALVES_ISSUED else "every member has"
        return f"{who} issued {name}, so no line of the program is to blame: the network or a device is stuck"
    return _MECHANISMS[cause.kind].format(ranks=rank_names(cause.ranks), name=name, whom=whom)


def _growth(cause: Cause) -> str:
    """Return, as a sentence to append, how the memory of a rank had grown before it ended; empty if it had not."""
    if cause.growth is None:
        return ""
    first, last, steps = cause.growth
    grown = f"its memory had grown from {size(first)} to {size(last)} in its last {steps} steps"
    return f". {capitalised(grown)} ({size(cause.growth.bytes_a_step)} a step), for which the kernel may have killed it"


def _end_of_process(cause: Cause) -> str:
    """Return how the process of a dead rank ended, as a phrase."""
    process = agree(cause.ranks, "its process", "each of their processes")
    if cause.culprit.out_of_memory:
        return f"{process} ended because {_failed_allocation(cause)}"
    if cause.culprit.error:
        return f"an uncaught {cause.culprit.error} ended {process}"
    if cause.end is None:
        return _WITHOUT_END.get(cause.reason, f"the other ranks wrote a dump, {rank_names(cause.ranks)} wrote none")
    if cause.end.ending is Ending.EXIT_CODE:
        return f"{process} ended, and no exception was recorded"
    return format_ending(cause.end)


_WITHOUT_END = {
    Reason.LOST_NODE: "the node died, or lost its network: a live node reports every few seconds, whatever its ranks"
    " do",
    Reason.RAS_DEAD: "the threads of NCCL's RAS in the other processes lost the connection to its process, and it left"
    " no dump as the others did",
    Reason.RAS_SILENT: "NCCL's RAS has a thread in each process, which answers even while the program hangs. That of"
    " its process did not, and it left no dump",
}
"""{reason: what shows that the process ended}, for cases in which no file says how it ended."""


def _failed_allocation(cause: Cause) -> str:
    """Return which allocation failed, as a phrase."""
    return "an allocation of host memory (CPU) failed" if is_host_memory(cause) else "an allocation failed"


_MISMATCHES = {
    Reason.OTHER_MODEL: "DDP gives each parameter of a rank to the same parameter of the others, so all must have the"
    " same ones",
    Reason.ABORTED: "gloo ends a rank that receives more bytes than its tensor holds; the other errors are"
    " consequences",
    Reason.LEFT_ALONE: "most ranks ended without this collective, so one branch ran only on some ranks, or the others"
    " left early",
    Reason.UNBALANCED: "members must receive in total what they send in total, so some of them wait for data that no"
    " rank sends",
    Reason.DIFFERENT_HALVES: "a send and its recv must have the same shape and type",
    Reason.SIZE_RULE: "the operation never completes, because the members expect different numbers of elements",
}
"""{reason of a cause: why operations that differ in this way cannot complete together}."""


def mismatch(cause: Cause) -> str:
    """Return a phrase on why the operations of a mismatch cannot complete together."""
    if called_elsewhere(cause):
        return (
            "gloo ends the rank that receives more bytes than its tensor holds. The ranks are at different lines: a"
            " branch ran only on some ranks, or a loop ended earlier on one of them"
        )
    if cause.reason in _MISMATCHES:
        return _MISMATCHES[cause.reason]
    if has_other_operation(cause):
        return (
            "the ranks called different operations, so none of them can complete. Probably a branch ran only on some"
            " ranks, or a loop ended earlier on one of them"
        )
    return "all members must pass the same shape and type. They did not, so the operation never completes"


def _further_evidence(cause: Cause) -> str:
    """Return the evidence for a cause that is not in the finding's title; empty if the title shows everything."""
    in_title = {
        Reason.UNBALANCED,
        Reason.DIFFERENT_HALVES,
        Reason.DIFFERENT_TAGS,
        Reason.OTHER_ORDER,
        Reason.NO_DUMP,
        Reason.LOST_DUMP,
        Reason.LOST_NODE,
        Reason.RAS_DEAD,
        Reason.RAS_SILENT,
        Reason.OTHERS_COMPLETED,
        Reason.BOTH_HALVES_ISSUED,
        Reason.ALL_JOINED,
        Reason.BOTH_LACK_OTHER_HALF,
        Reason.NEVER_ISSUED_OTHER_HALF,
        Reason.PARTNER_NEVER_ISSUED,
        Reason.OTHER_LAUNCH,
        Reason.MADE_PROGRESS,
        Reason.MOVED_ON,
        Reason.ENDED,
        Reason.LEFT_ALONE,
        Reason.KEPT_ALIVE,
        Reason.AFTER_END,
        Reason.SHUT_DOWN,
    }
    # A skipped operation has one line in its title; which operation came instead is worth saying.
    if cause.reason in in_title or (cause.reason is Reason.DEVIATION and cause.kind is not HangClass.SKIPPED):
        return ""
    return _evidence_of_reason(cause)


def detail(cause: Cause) -> str:
    """Return the text of the field `data.culprits[].detail`: why these ranks are the culprits.

    For a mismatch the text begins with the operations that the ranks issued.
    """
    if cause.kind is HangClass.MISMATCH and cause.sides and cause.reason is not Reason.DIFFERENT_HALVES:
        return f"{list_issued(cause.sides)}; {_evidence_of_reason(cause)}"
    return _evidence_of_reason(cause)


def _evidence_of_reason(cause: Cause) -> str:
    """Return the evidence that distinguishes a culprit from the other ranks, as a phrase.

    The text is empty if the `reason` of the cause needs no words.
    """
    evidence = _EVIDENCE.get(cause.reason, "")
    return evidence if isinstance(evidence, str) else evidence(cause)


_HOLDS_GIL = (
    "its process does not answer requests that need Python's global lock (GIL), so a C call holds that lock (the stack"
    " was read without it)"
)


def _host_state(host: HostState) -> str:
    """Return a phrase with what is known about the process of a running rank; empty if nothing is known.

    The phrase can name the part of the step, a held global lock of Python (GIL), a process that is stopped or waits in
    the kernel, and a thread that ended by an exception.
    """
    parts = [
        f"it last reported progress{part_of_step(host.phase, host.step)}" if host.phase else "",
        _HOLDS_GIL if host.holds_gil else "",
        _PROCESS_STATES[host.process] if host.process else "",
        f"its thread {host.thread_error.thread} ended: {format_exception(host.thread_error)}"
        if host.thread_error
        else "",
        f"a task of asyncio ended: {format_exception(host.task_error)}" if host.task_error else "",
    ]
    return "; ".join(part for part in parts if part)


def _members_that_agree(cause: Cause) -> str:
    """Return how many members of the process group issued the operation of the majority, as a phrase."""
    return f"the other {len(cause.sides[0].ranks)} of {cause.members} ranks agree with each other"


def _members_that_completed(cause: Cause) -> str:
    """Return how many members of the process group have completed the operation, as a phrase."""
    return f"{cause.completed} of {cause.members} members have completed it"


def elements(cause: Cause) -> str:
    """Return a phrase on how many elements the members of an unbalanced all_to_all send and receive in total."""
    sent, received = cause.elements
    return f"together they send {sent} elements and receive {received}"


def _received_bytes(cause: Cause) -> str:
    """Return a phrase on the received and expected sizes that gloo logged; empty if no log of the rank has them."""
    received, expected = cause.elements
    return f"it received {size(received)} where it expected {size(expected)}" if received else ""


def no_answer(cause: Cause) -> str:
    """Return a phrase on why a process did not answer the request for a dump, as far as the reason is known."""
    return _host_state(cause.host) or f"{choose_pronoun(cause.ranks)} did not answer the request for a dump"


_EVIDENCE: dict[Reason, str | Callable[[Cause], str]] = {
    Reason.MAJORITY: _members_that_agree,
    Reason.SIZE_RULE: lambda cause: f"the sizes of its input and output do not fit: {size_rule(cause)}",
    Reason.EMPTY_TENSOR: lambda cause: f"{agree(cause.ranks, 'its tensor is', 'their tensors are')} empty",
    Reason.EARLIER_STEPS: "in its earlier steps it called another operation at this point",
    Reason.SIMILAR_GROUPS: "other process groups of this kind issued the operation of the other ranks",
    Reason.SAME_LINE: "in other process groups this line issued the operation of the other ranks",
    Reason.LINE_OF_ABORTED: "the rank that gloo ended was at the line of the other ranks",
    Reason.SIZE_OF_ABORTED: "the rank that gloo ended expected a tensor of the other size",
    Reason.SHIFTED: "from here on it issues the same operations as the others, each with a sequence number that is"
    " lower by one",
    Reason.TIE: "equally many ranks issued each of the two, so either side may be wrong",
    Reason.UNBALANCED: elements,
    Reason.DEVIATION: lambda cause: f"it issued {both_sides(cause)}",
    Reason.ISSUED_LATER_OPERATIONS: "it issued later operations without this one",
    Reason.OTHER_ORDER: lambda cause: list_waiting(cause.sides),
    Reason.BOTH_LACK_OTHER_HALF: "each waits for a send or recv that its peer has not issued",
    Reason.NEVER_ISSUED_OTHER_HALF: "it never issued the matching send or recv",
    Reason.PARTNER_NEVER_ISSUED: "its peer never issued the matching send or recv",
    Reason.OTHER_LAUNCH: "its message is in a different batch than its peers expect",
    Reason.DIFFERENT_HALVES: message_halves,
    Reason.DIFFERENT_TAGS: message_halves,
    Reason.BOTH_HALVES_ISSUED: "both the send and the recv were issued",
    Reason.OTHER_PEER: "one peer waits for the message that it never issued, and another one never issued the other"
    " half of the message that it did issue",
    Reason.ONE_TOO_MANY: "its peer and all other pairs issued one message less",
    Reason.NEVER_EXCHANGED: "it is the first such message between the two, after many others, and the peer has gone on"
    " to a collective",
    Reason.ABORTED: _received_bytes,
    Reason.NAMED_ABSENT: "the error of the ranks that waited names it",
    Reason.OTHER_MODEL: "DDP's errors name the numbers of parameters",
    Reason.ENDED: lambda cause: format_ending(cause.end) if cause.end else "",
    Reason.LEFT_ALONE: "all other ranks had ended normally",
    Reason.SHUT_DOWN: "all other members have joined",
    Reason.AFTER_END: "all other ranks had ended without an error",
    Reason.KEPT_ALIVE: "its main thread waits for other threads at the end of the program",
    Reason.NO_DUMP: lambda cause: f"{choose_pronoun(cause.ranks)} left no dump",
    Reason.LOST_DUMP: lambda cause: f"the dump of {rank_names(cause.ranks)} is missing or cannot be read",
    Reason.RAS_DEAD: "NCCL's RAS reports that the process is unreachable",
    Reason.RAS_SILENT: "NCCL's RAS got no data from the process",
    Reason.LOST_NODE: lambda cause: f"silent since {cause.node.last_time}" if cause.node else "",
    Reason.NO_ANSWER: no_answer,
    Reason.CLOSED_GROUP: "it had called destroy_process_group() before, while its process goes on",
    Reason.RUNS_OWN_CODE: lambda cause: _host_state(cause.host),
    Reason.OTHERS_COMPLETED: _members_that_completed,
    Reason.ALL_JOINED: "every member has joined it",
    Reason.MADE_PROGRESS: "all of them made progress between the two rounds of dumps",
    Reason.MOVED_ON: "all of them went on after the dumps were taken",
}
