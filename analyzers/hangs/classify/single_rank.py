"""Find out why a single rank, which is in no recorded operation, makes other ranks wait.

Such a rank ended, skipped an operation, or is stuck in code outside of any operation.
"""

from dataclasses import replace
from itertools import pairwise

import msgspec

from analyzers.hangs.classify.cause import Cause, ChildProcess, HangContext, HostState, make_cause, ranks_in_op
from analyzers.hangs.classify.differing_programs import blame_deviation, blame_divergence
from analyzers.hangs.graph.divergence import find_divergence
from analyzers.hangs.graph.wait_graph import OpNode, find_first_missed
from analyzers.hangs.model import HangClass, Job, Op, Reason, is_library, user_frame
from analyzers.hangs.reading.exits import Ending, RankEnd, is_victim, read_task_error
from analyzers.hangs.reading.p2p import in_message
from analyzers.hangs.reading.side_files import DONE_PHASE, NO_GROUP_PHASE, SideFiles
from analyzers.hangs.reading.side_formats import Answer, AnswerStatus, ProcessState
from analyzers.hangs.reading.thread_stacks import read_children
from analyzers.node_health import DEAD, SILENT

_RANKS_SAMPLED = 64
_SHORTEST_HANG_NS = 1_000_000_000
"""The time in ns before the dumps within which an issued operation may be slow rather than hung."""


def is_newer_than_skew(context: HangContext, node: OpNode) -> bool:
    """Return whether the last rank issued an operation so shortly before the dumps that it may be slow, not hung.

    The limit is one second, or the time between the first and the last dump if this is longer.
    """
    answered = [t for rank in context.job.ranks if (t := context.side.answered_ns(rank)) is not None]
    current_ops = context.operations_at(node)
    # NCCL retires an operation that is not done only when it times out: that one hung.
    if not answered or any(op.retired for op in current_ops):
        return False
    skew = max(answered) - min(answered)
    return min(answered) - max(op.created_ns for op in current_ops) <= max(skew, _SHORTEST_HANG_NS)


def is_in_flight(context: HangContext, node: OpNode) -> bool:
    """Return whether the operation `node` began so shortly before the dumps that it may not be hung.

    The limit is twice the longest pause between operations of the ranks in it, plus the time between the first and the
    last dump. This rule is only for dumps about whose time nothing but the file times is known, so the result is False
    if a file records when the dumps were requested. It is also False if the watchdog has given the operation up.
    """
    job, current_ops = context.job, context.operations_at(node)
    if not job.taken_ns or context.side.collection or not current_ops or any(op.retired for op in current_ops):
        return False
    # The ranks of one operation run alike, so a sample of them is enough.
    usual = max(_longest_pause_ns(job, op.rank) for op in current_ops[:_RANKS_SAMPLED])
    taken = job.taken_ns.values()
    return min(taken) - min(op.created_ns for op in current_ops) <= 2 * usual + max(taken) - min(taken)


def _longest_pause_ns(job: Job, rank: int) -> int:
    """Return the longest time in nanoseconds in which a rank started no operation, as its dump shows it.

    That is the longest time from one start to the next, or the longest duration of a completed operation if that is
    longer.
    """
    ops = job.ranks[rank].ops
    pauses = (after.created_ns - before.created_ns for before, after in pairwise(ops))
    return max([*pauses, *(op.completed_ns - op.created_ns for op in ops if op.done)], default=0)


NO_PHASES = ("", "step", "between", "running")
"""The phases in a heartbeat which say that the rank is in no particular part of a step."""
_CONFIDENCE_WITHOUT_ANSWER = 0.7
_CONFIDENCE_WITHOUT_DUMP = 0.6
_CONFIDENCE_WITH_LOST_DUMP = 0.2
_CONFIDENCE_OF_ABORT = 0.8
RAS = {DEAD: (Reason.RAS_DEAD, 0.85), SILENT: (Reason.RAS_SILENT, 0.65)}
"""{state that NCCL's RAS reports of a rank without a dump: (reason, confidence)}."""


def classify_rank(context: HangContext, rank: int, victims: list[int]) -> Cause | None:
    """Return a `Cause` which says why one rank does not arrive in the operations in which the victims wait for it.

    The result is None if all these operations may still be in flight.
    """
    nodes = [node for node in context.graph.operations_waiting_for(rank) if not is_in_flight(context, node)]
    if not nodes:
        return None
    node = _find_missed_operation(context, rank, nodes)
    # The order matters: an end explains a divergence, and a divergence what came after it.
    end = context.side.end(rank)
    if end and end.is_shutdown and rank not in context.job.ranks:
        kind, reason = HangClass.HOST_STUCK, Reason.SHUT_DOWN
        return make_cause(context, kind, reason, [rank], node, victims, confidence=_CONFIDENCE_WITHOUT_DUMP)
    if end:
        blame = _blame_aborted_rank if end.is_size_abort and not node.is_p2p else _blame_dead_rank
        return blame(context, end, node, victims)
    if not node.is_p2p and (divergence := find_divergence(context.job, node.group, node.seq)):
        return blame_divergence(context, divergence, [rank, *victims])
    if rank not in context.job.ranks:
        return _blame_rank_without_dump(context, rank, node, victims)
    if deviation := context.programs.deviation(rank):
        return blame_deviation(context, [deviation], node, victims)
    return _classify_running_rank(context, rank, node, victims)


def _find_missed_operation(context: HangContext, rank: int, nodes: list[OpNode]) -> OpNode:
    """Return the operation in `nodes` that the rank should have issued first; others wait for it in all of them."""
    expected = context.programs.next_expected(rank)
    if expected is None and (first := find_first_missed(context.job, rank, nodes)):
        return first
    # A stage of a pipeline waits in its recv for most of a step, so without other evidence a collective comes first.
    return min(nodes, key=lambda n: (not _stands_for(context.job, expected, n), n.is_p2p, context.began_ns(n)))


def _stands_for(job: Job, op: Op | None, node: OpNode) -> bool:
    """Return whether `op`, an operation of another rank, is the same operation of the program as `node`.

    Two conditions must hold. Both are collectives with the same sequence number, or both are sends and receives. And
    their process groups have the same description; the groups may be different ones, such as two tp groups of a mesh.
    """
    if op is None or op.p2p != node.is_p2p or job.groups[op.group].desc != job.groups[node.group].desc:
        return False
    return op.p2p or op.seq == node.seq


def _blame_dead_rank(context: HangContext, end: RankEnd, node: OpNode, victims: list[int]) -> Cause:
    """Return a `Cause` which says that a rank ended while others waited for it in the operation `node`.

    The victims of the cause are the ranks `victims`, which wait, and all ranks that ended because they lost a
    connection.
    """
    disconnected = [rank for rank, exit_file in context.side.exits.items() if is_victim(exit_file)]
    everyone = sorted({*victims, *disconnected})
    cause = make_cause(context, HangClass.DEAD, Reason.ENDED, [end.rank], node, everyone)
    exit_file = end.exit_file
    if exit_file is None:
        # A stack from before the end would blame a line that has nothing to do with it; one of the signal does not.
        cause = replace(cause, culprit=msgspec.structs.replace(cause.culprit, frames=end.stack), end=end)
        current_ops = context.operations_at(node) if end.ending is Ending.NO_ERROR else []
        return (
            replace(cause, expected=ranks_in_op(context, context.graph.arrived(node), current_ops[0]))
            if current_ops
            else cause
        )
    culprit = msgspec.structs.replace(
        cause.culprit,
        frames=exit_file.traceback,
        error=exit_file.error,
        out_of_memory=exit_file.out_of_memory,
        step=exit_file.step or cause.culprit.step,
    )
    return replace(cause, culprit=culprit, end=end)


def _blame_aborted_rank(context: HangContext, end: RankEnd, node: OpNode, victims: list[int]) -> Cause:
    """Return a `Cause` for a rank that gloo aborted because members of a group passed tensors of different sizes.

    The abort (`end`) is a consequence of an error, perhaps of another rank. If the dumps of the other ranks differ, the
    result blames the ranks that erred. Otherwise it blames the aborted rank, for which `victims` wait in operation
    `node`. In a group of two ranks both may be blamed, because either may be wrong.
    """
    if divergence := find_divergence(context.job, node.group, node.seq):
        return blame_divergence(context, divergence, [end.rank, *victims])
    kind, reason = HangClass.MISMATCH, Reason.ABORTED
    cause = make_cause(context, kind, reason, [end.rank], node, victims, confidence=_CONFIDENCE_OF_ABORT)
    culprit = msgspec.structs.replace(cause.culprit, frames=end.stack)
    cause = replace(cause, culprit=culprit, end=end, elements=end.sizes or (0, 0))
    if not context.operations_at(node) or not end.stack:
        return cause
    expected = ranks_in_op(context, context.graph.arrived(node), context.operations_at(node)[0])
    issued = replace(expected, ranks=[end.rank], shape="", line=user_frame(end.stack))
    members = context.group(node).ranks
    if len(members) == 2:
        # Gloo ends the one with the smaller tensor, which need not be the wrong one.
        culprit = msgspec.structs.replace(culprit, ranks=members, victims=[r for r in victims if r not in members])
        return replace(cause, culprit=culprit, reason=Reason.TIE, sides=(issued, expected))
    return replace(cause, issued=issued, expected=expected)


def _blame_rank_without_dump(context: HangContext, rank: int, node: OpNode, victims: list[int]) -> Cause:
    """Return a `Cause` that blames `rank`, which left no dump, and whose end no file describes.

    The `victims` wait for it in operation `node`. The rank counts as stuck if it did not answer the request for its
    dump in time, else as dead. If its dump was written, but is damaged, unreadable or not among the files, the rank may
    also be a victim, so the class is unknown.
    """
    answer = context.side.answer(rank)
    if rank in context.job.unreadable or (answer and answer.status == AnswerStatus.OK):
        kind, reason = HangClass.UNKNOWN, Reason.LOST_DUMP
        return make_cause(context, kind, reason, [rank], node, victims, confidence=_CONFIDENCE_WITH_LOST_DUMP)
    if answer and answer.status == AnswerStatus.TIMEOUT:
        cause = make_cause(
            context,
            HangClass.HOST_STUCK,
            Reason.NO_ANSWER,
            [rank],
            node,
            victims,
            confidence=_CONFIDENCE_WITHOUT_ANSWER,
        )
        return replace(cause, host=HostState(process=_read_process_state(answer)))
    if state := context.side.health.ras_state(rank):
        reason, confidence = RAS[state]
        return make_cause(context, HangClass.DEAD, reason, [rank], node, victims, confidence=confidence)
    return make_cause(
        context, HangClass.DEAD, Reason.NO_DUMP, [rank], node, victims, confidence=_CONFIDENCE_WITHOUT_DUMP
    )


def _classify_running_rank(context: HangContext, rank: int, node: OpNode, victims: list[int]) -> Cause:
    """Return a `Cause` that blames `rank`, which still runs and whose dump shows no difference from other ranks.

    The `victims` wait for it in operation `node`. The class depends on the rank's stack, its step and its later
    operations.
    """
    frames = context.side.main_stack(rank)
    went_on = _has_gone_on(context, rank, node)
    if in_message(frames):
        kind, reason = HangClass.UNMATCHED_P2P, Reason.PARTNER_NEVER_ISSUED
    elif node.is_p2p and went_on:
        kind, reason = HangClass.UNMATCHED_P2P, Reason.NEVER_ISSUED_OTHER_HALF
    elif went_on:
        kind, reason = HangClass.SKIPPED, Reason.ISSUED_LATER_OPERATIONS
    elif _has_closed_group(context, rank):
        kind, reason = HangClass.SKIPPED, Reason.CLOSED_GROUP
    else:
        kind, reason = HangClass.HOST_STUCK, Reason.RUNS_OWN_CODE
    cause = make_cause(context, kind, reason, [rank], node, victims, frames=frames)
    return replace(cause, host=_read_host_state(context.side, rank)) if kind is HangClass.HOST_STUCK else cause


def _has_closed_group(context: HangContext, rank: int) -> bool:
    """Return whether, according to its heartbeat, a running rank had destroyed its process groups before its dump."""
    beat = context.side.heartbeat(rank)
    return beat is not None and beat.phase in (DONE_PHASE, NO_GROUP_PHASE)


def _read_host_state(side: SideFiles, rank: int) -> HostState:
    """Return the state of a rank's process, from its heartbeat, its answers to requests and the operating system."""
    answer, thread_error = side.answer(rank), side.last_words.thread_errors.get(rank)
    child, log = _find_busy_child(side, rank), side.log_files.get(rank)
    task_error = read_task_error(log, rank) if log else None
    if answer is None:
        return HostState(thread_error=thread_error, child=child, task_error=task_error)
    beat = answer.heartbeat
    in_phase = beat if beat and beat.step and beat.phase not in NO_PHASES else None
    return HostState(
        step=in_phase.step if in_phase else None,
        phase=in_phase.phase if in_phase else "",
        holds_gil=_holds_gil(side, rank),
        process=_read_process_state(answer),
        thread_error=thread_error,
        child=child,
        task_error=task_error,
    )


def _find_busy_child(side: SideFiles, rank: int) -> ChildProcess | None:
    """Return the first child process of a rank that is in the user's code, and so does not just wait for work."""
    path = side.child_files.get(rank)
    children = read_children(path) if path else []
    busy = (child for child in children if not all(map(is_library, child.stack)))
    return next((ChildProcess(child.pid, tuple(child.stack)) for child in busy), None)


def _read_process_state(answer: Answer) -> ProcessState | None:
    """Return why a rank's process does not run (stopped, or waiting in the kernel); None if not recorded."""
    return next((state for state in ProcessState if state == answer.process), None)


def _holds_gil(side: SideFiles, rank: int) -> bool:
    """Return whether a rank's process seems to hold Python's global lock (GIL) all the time.

    The evidence: it answered some requests, but none whose answer needs the GIL.
    """
    answers = [a for number in side.rounds if (a := number.ranks.get(rank)) and a.status == AnswerStatus.OK]
    # Only JSON dumps and py-spy work while a C call holds the GIL.
    return bool(answers) and all(a.channel == "json" and a.stacks != "http" for a in answers)


def _has_gone_on(context: HangContext, rank: int, node: OpNode) -> bool:
    """Return whether `rank` issued operations after others began to wait for it in `node`, or is in a later step.

    The operations count only if the rank's program cannot be compared with the program of another rank; otherwise the
    comparison has already shown whether the rank skipped `node`.
    """
    since = max((op.created_ns for op in context.operations_at(node)), default=0)
    if not context.programs.is_comparable(rank) and any(op.created_ns > since for op in context.job.ranks[rank].ops):
        return True
    mine = context.side.heartbeat(rank)
    theirs = [beat.step for r in context.graph.arrived(node) if (beat := context.side.heartbeat(r))]
    return bool(mine and theirs and mine.step > max(theirs))
