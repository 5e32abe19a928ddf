"""Write the next thing to try: an imperative sentence with the line, command or setting to look at."""

import re
import signal
from collections.abc import Callable

from analyzers.hangs.classify.blocks import BlockKind, Parting
from analyzers.hangs.classify.cause import Cause
from analyzers.hangs.findings.from_stacks import for_stuck_code, on_host, py_spy
from analyzers.hangs.findings.titles import called_elsewhere, has_other_operation
from analyzers.hangs.findings.wording import format_block, format_line, is_host_memory, one_line, size_rule
from analyzers.hangs.model import HangClass, Reason, user_frame
from analyzers.hangs.reading.exits import Ending, RankEnd
from analyzers.hangs.reading.side_formats import ProcessState
from analyzers.words import agree, rank_names, size

UNUSED_PARAMETERS = "Expected to have finished reduction in the prior iteration"
OOM_KILLER = "`dmesg -T | grep -i 'killed process'`"
_SEE_MEMORY = (
    "see in a memory snapshot of the rank what filled its memory (`workbench inspect SNAPSHOT`; the trainer records one"
    " with profiling.enable_memory_snapshot, other scripts with "
)
_DEVICE_RECORDER = "torch.cuda.memory._record_memory_history()"
_HOST_RECORDER = "`workbench.recorders.MemoryRecorder`: PyTorch records none of a CPU"
_ADVICE = re.compile(
    r"\b[Pp]lease (?:do )?((?:use|set|call|pass|specify|install|increase|upgrade)\b.{8,240}?)(?=\.(?:\s|$)|$)"
)
"""Matches what the message of an exception itself advises, as far as the end of its sentence."""
COLLECT_AGAIN = "collect the dumps again, or copy the files again: they may be truncated"


def next_step(cause: Cause) -> str:
    """Return the next thing to try, as an imperative sentence without a full stop."""
    if cause.reason is Reason.OTHER_GROUPS:
        return _for_other_groups(cause)
    if cause.reason is Reason.DIFFERENT_TAGS:
        return f"pass the same tag at {' and '.join(_differing_lines(cause))}, or no tag"
    if cause.reason is Reason.CLOSED_GROUP:
        return f"call destroy_process_group() on {rank_names(cause.ranks)} only after the last collective"
    if cause.reason is Reason.KEPT_ALIVE:
        line = format_line(user_frame(cause.culprit.frames))
        return f"stop the thread{f' at {line}' if line else ''} at the end of the program, or start it with daemon=True"
    if cause.reason is Reason.AFTER_END:
        return (
            "call dist.destroy_process_group() as the last thing on every rank; if a rank is still aborted, end it with"
            " sys.stdout.flush() and os._exit(0)"
        )
    if cause.parting:
        return _for_parting(cause, cause.parting)
    step = NEXT[cause.kind]
    return step if isinstance(step, str) else step(cause)


_CURES = {
    BlockKind.HANDLER: "let all ranks do the same after an error: {block} goes on where the other ranks had none",
    BlockKind.BRANCH: "let {block} decide alike on every rank, for example by an all_reduce of its condition, or move"
    " the collective out of it",
    BlockKind.NAMES: "let {block} go through the same names in the same order on every rank",
    BlockKind.BATCHES: "give every rank as many rounds of {block}: drop_last=True and a DistributedSampler for the"
    " data, or `with Join([model]):` around the loop",
    BlockKind.COUNTED: "find the `if`, `continue` or `break` in {block} by which {ranks} left its collective out",
    BlockKind.LOOP: "let {block} run equally often on every rank",
}
"""{kind of the block at which ranks parted: what to do}."""


def _for_parting(cause: Cause, parting: Parting) -> str:
    """Return what to do about the `if` or loop at which the culprits parted from the other ranks."""
    block = format_block(parting.block)
    if parting.block.kind is not BlockKind.RANK:
        return _CURES[parting.block.kind].format(block=block, ranks=rank_names(cause.ranks))
    side = cause.issued if cause.issued and parting.inside == cause.issued.ranks else cause.expected
    line = format_line(side.line if side else user_frame(cause.culprit.frames))
    what = f"the collective at {line}" if line else "the collective"
    return f"move {what} out of {block}: every rank of the group must call it"


def _for_stuck(cause: Cause) -> str:
    """Return what to do about a rank that runs its own code."""
    line = format_line(user_frame(cause.culprit.frames))
    if cause.host.process is ProcessState.STOPPED:
        process = cause.process
        return (
            f"continue the process with `kill -CONT {process.number}`{on_host(process)}, and find out what stopped it"
        )
    if cause.host.process is ProcessState.IN_KERNEL:
        return "check the storage and the drivers of the host: the process waits in a system call"
    if error := cause.host.thread_error:
        where = format_line(user_frame(error.traceback))
        fix = error.hint or f"fix the {error.error} raised{f' at {where}' if where else ''}"
        return f"{fix}: {'the error' if error.hint else 'it'} ended a thread of the rank"
    if task := cause.host.task_error:
        where = f" at {at}" if (at := format_line(user_frame(task.traceback))) else ""
        return (
            f"fix the {task.error} raised{where}: it ended a task, for which the rank may wait for ever; await"
            " tasks, or run them in an asyncio.TaskGroup, so that their errors are raised"
        )
    if not line:
        return f"see where the rank is with {py_spy(cause.process)}, as no stack of it was recorded"
    if cause.host.holds_gil:
        return (
            f"look at the C function that {line} calls: it does not return and holds the GIL; while it hangs,"
            f" {py_spy(cause.process, '--native')} names it"
        )
    return for_stuck_code(cause.culprit.frames, cause.process, len(cause.ranks), cause.host.child)


def _for_other_groups(cause: Cause) -> str:
    """Return what to do about ranks that created other process groups than the rest."""
    line = format_line(cause.expected.line) if cause.expected else ""
    where = f" at {line}" if line else ""
    return f"call new_group{where} on all ranks in the same order, or pass use_local_synchronization=True"


def _for_dead(cause: Cause) -> str:
    """Return what to do about a rank that ended."""
    if cause.culprit.out_of_memory:
        recorder = _HOST_RECORDER if is_host_memory(cause) else _DEVICE_RECORDER
        return f"{_SEE_MEMORY}{recorder}){_only_wait(cause)}"
    if cause.culprit.error:
        return _for_exception(cause)
    if cause.node:
        name = cause.node.name
        return f"find out whether {name} is up: its power, kernel log and network, and whether the scheduler took it"
    if cause.end is None:
        ranks = rank_names(cause.ranks)
        return f"read the log of {ranks}; if its process is still alive, {py_spy(cause.process)} shows where it is"
    return _for_process(cause, cause.end)


def _only_wait(cause: Cause) -> str:
    """Return an addition to advice: the other ranks only wait for the culprit; empty if no rank waits for it."""
    return f"; the other ranks only wait for {agree(cause.ranks, 'it', 'them')}" if cause.victims else ""


def _for_process(cause: Cause, end: RankEnd) -> str:
    """Return what to do about a process that ended without an exception."""
    ranks, waits = rank_names(cause.ranks), _only_wait(cause)
    if end.ending is Ending.NO_ERROR:
        return (
            f"find out why {ranks} ran fewer steps: count its batches, and look for a return or break that only it"
            " reaches, or an `except` that goes on after an error and so leaves out collectives"
        )
    if cause.growth:
        return (
            f"find what the program keeps from step to step ({size(cause.growth.bytes_a_step)} each), such as a list of"
            f" losses with their graphs; whether the kernel killed {ranks} for its memory is in {OOM_KILLER}{waits}"
        )
    # No process can catch SIGKILL, so its own log says nothing.
    if end.exit_code == -signal.SIGKILL:
        return (
            f"find out who sent SIGKILL: look for the out-of-memory killer on the host ({OOM_KILLER}), and in the"
            f" scheduler's log{waits}"
        )
    if end.exit_code == -signal.SIGSEGV and not end.stack:
        return f"start the job with PYTHONFAULTHANDLER=1 to get the stack of the crash in the rank's log{waits}"
    return f"read the log of {ranks}: its last lines and the exit status show why the process ended{waits}"


def _for_exception(cause: Cause) -> str:
    """Return what to do about an uncaught exception."""
    exit_file = cause.end.exit_file if cause.end else None
    if exit_file and UNUSED_PARAMETERS in exit_file.message:
        ranks = rank_names(cause.ranks)
        return (
            f"find the branch of the model that {ranks} did not run in the step before: let every parameter take part"
            " in the loss on every rank, or pass find_unused_parameters=True to DistributedDataParallel"
        )
    if exit_file and exit_file.hint:
        return f"{exit_file.hint}{_only_wait(cause)}"
    line = format_line(user_frame(cause.culprit.frames))
    where = f" at {line}" if line else ""
    if exit_file and (advice := _ADVICE.search(one_line(exit_file.message))):
        return f"{advice[1]} (so says the {cause.culprit.error}{where}){_only_wait(cause)}"
    if cause.culprit.error == "SystemExit":
        return f"find out why the program calls sys.exit(){where}{_only_wait(cause)}"
    return f"fix the {cause.culprit.error} raised{where}{_only_wait(cause)}"


def _for_skipped(cause: Cause) -> str:
    """Return what to do about a rank that skipped an operation."""
    line = format_line(cause.expected.line) if cause.expected else ""
    what = f"around {line}" if line else "around this operation"
    ranks = rank_names(cause.ranks)
    return f"find the condition or the loop {what} that makes {ranks} skip it"


def _differing_lines(cause: Cause) -> list[str]:
    """Return the source lines that issued the differing operations, each once; the line of most ranks comes first."""
    sides = cause.sides or tuple(side for side in (cause.expected, cause.issued) if side)
    return list(dict.fromkeys(format_line(side.line) for side in sides if side.line))


def _for_other_order(cause: Cause) -> str:
    """Return what to do about process groups that are used in different orders."""
    lines = _differing_lines(cause)
    what = f"what {lines[0]} and {lines[1]} issue" if len(lines) > 1 else "the operations of these groups"
    return f"issue {what} in the same order on every rank"


_MISMATCHES = {
    Reason.OTHER_MODEL: "compare the model's configuration, and the versions of the code, on all ranks",
    Reason.LEFT_ALONE: "look for a collective that only this rank reaches: in `if rank == 0:`, in saving, logging or"
    " metrics",
    Reason.UNBALANCED: "compare input_split_sizes and output_split_sizes{where}: each rank must receive what is sent to"
    " it",
    Reason.DIFFERENT_HALVES: "pass tensors of the same shape and type to the send and the recv{where}",
}
"""{reason of a cause: what to do about operations that differ}; `{where}` is replaced by their lines."""


def _for_mismatch(cause: Cause) -> str:
    """Return what to do about members that issued different operations."""
    lines = _differing_lines(cause)
    where = f" at {lines[0]}" if len(lines) == 1 else ""
    if cause.reason in _MISMATCHES:
        return _MISMATCHES[cause.reason].format(where=where)
    if len(lines) > 1 and (has_other_operation(cause) or called_elsewhere(cause)):
        return f"compare {lines[0]} with {lines[1]}, and make every rank take the same branch"
    if has_other_operation(cause):
        return f"find out why ranks issue different operations{where}: make every rank take the same branch"
    if cause.reason is Reason.SIZE_RULE:
        return f"print the sizes of the input and the output{where} on {rank_names(cause.ranks)}: {size_rule(cause)}"
    if _is_shorter(cause):
        return (
            f"give {rank_names(cause.ranks)} as many rows{where} as the others: drop_last=True for a smaller last"
            " batch, or pad it before the collective and cut it afterwards"
        )
    return f"print the tensor's shape and dtype{where} on every rank, and make them equal"


def _is_shorter(cause: Cause) -> bool:
    """Return whether the culprits passed a tensor with fewer rows than the others, and otherwise of the same shape."""
    mine, theirs = ((side.sizes if side else ()) for side in (cause.issued, cause.expected))
    if len(mine) != 1 or len(theirs) != 1 or len(mine[0]) < 2:
        return False
    return mine[0][1:] == theirs[0][1:] and mine[0][0] < theirs[0][0]


def _for_lagging(cause: Cause) -> str:
    """Return what to do about ranks in an operation that others have completed."""
    ranks = rank_names(cause.ranks)
    if cause.is_gloo:
        line = format_line(user_frame(cause.culprit.frames))
        what = f"what each rank passes to {line}" if line else "what each rank passes to this operation"
        return f"take dumps a second time, to see whether {ranks} went on; otherwise print {what}, shape and dtype"
    return f"check the device of {ranks} (`nvidia-smi`, `dmesg -T | grep -i xid`): an earlier kernel may hang there"


def _for_all_arrived(cause: Cause) -> str:
    """Return what to do about an operation that all members have joined, but that does not complete."""
    devices = "the devices of these ranks (`dmesg -T | grep -i xid`) and the network between them"
    what = "the network between these ranks" if cause.is_gloo else devices
    return f"check {what}; take dumps a second time to see whether any rank went on"


NEXT: dict[HangClass, str | Callable[[Cause], str]] = {
    HangClass.DEAD: _for_dead,
    HangClass.MISMATCH: _for_mismatch,
    HangClass.SKIPPED: _for_skipped,
    HangClass.ORDER_CYCLE: _for_other_order,
    HangClass.HOST_STUCK: _for_stuck,
    HangClass.UNMATCHED_P2P: "give each send a recv on its peer, and issue both in the same order on both ranks",
    HangClass.LAGGING: _for_lagging,
    HangClass.ALL_ARRIVED: _for_all_arrived,
    HangClass.SLOW: "run `workbench steps` and `workbench trace` to see where the slow rank's time goes",
    HangClass.UNKNOWN: "collect the dumps of all ranks; if they are on several nodes, give the folders of all nodes to"
    " one `workbench hang` command",
}
