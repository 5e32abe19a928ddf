"""Know the hangs in which the process of a rank ended: by an error, a signal, with its node, or without a word."""

import re
import signal

from analyzers.hangs.classify.cause import Cause
from analyzers.hangs.findings.entry import HangFailure
from analyzers.hangs.findings.wording import (
    at_step,
    format_ending,
    format_line,
    in_function,
    in_line,
    is_host_memory,
    name_operation,
    one_line,
    py_spy,
)
from analyzers.hangs.model import HangClass, Reason, user_frame
from analyzers.hangs.reading.exits import Ending, RankEnd
from analyzers.node_health import named
from analyzers.report import Severity
from analyzers.words import agree, capitalised, rank_names, size

UNUSED_PARAMETERS = "Expected to have finished reduction in the prior iteration"
OOM_KILLER = "`dmesg -T | grep -i 'killed process'`"
DEBUG_SERVER = "this server runs as long as the process does, so a refused connection means that the process has ended"
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


def _when(cause: Cause) -> str:
    """Return when a rank ended, as far as it is known: ` at step 6 before all_reduce #412 of process group dp`."""
    name = name_operation(cause.culprit)
    return f"{at_step(cause)} before {name}" if name else at_step(cause)


def _only_wait(cause: Cause) -> str:
    return f"; the other ranks only wait for {agree(cause.ranks, 'it', 'them')}" if cause.victims else ""


def _stops_others(how: str, cause: Cause) -> str:
    """Return how a process ended, and that the ranks which wait for it cannot go on."""
    name = name_operation(cause.culprit)
    needs = f"{name} can complete only with {_partners(cause)}" if name else "their collectives need every rank"
    it = agree(cause.ranks, "it", "them")
    return f"{how}. The ranks that wait for {it} cannot go on: {needs}" if cause.victims else how


def _partners(cause: Cause) -> str:
    is_message = (cause.culprit.operation or "").startswith(("send ", "recv "))
    return "the matching send or recv" if is_message else "every member"


def _its_process(cause: Cause) -> str:
    return agree(cause.ranks, "its process", "each of their processes")


# Out of memory.


def _failed_allocation(cause: Cause) -> str:
    what = "an allocation of host memory (CPU) failed" if is_host_memory(cause) else "an allocation failed"
    return _stops_others(f"{_its_process(cause)} ended because {what}", cause)


def _see_memory(cause: Cause) -> str:
    return f"{_SEE_MEMORY}{_HOST_RECORDER if is_host_memory(cause) else _DEVICE_RECORDER}){_only_wait(cause)}"


# An exception that nothing caught.


def _died(cause: Cause) -> str:
    """Return the title of a finding on a rank whose process has ended."""
    assert cause.end
    ranks, when = rank_names(cause.ranks), _when(cause)
    if cause.end.signal:
        return f"{ranks} died{when}: {cause.end.signal}{in_function(cause)}"
    if cause.end.ending is Ending.PROCESS_EXITED:
        return f"{ranks} exited{when} without an error message"
    return f"{ranks} died{when}: {format_ending(cause.end)}"


def _by_exception(cause: Cause) -> str:
    return _stops_others(f"an uncaught {cause.culprit.error} ended {_its_process(cause)}", cause)


def _for_exception(cause: Cause) -> str:
    """Return what to do about an uncaught exception: what it says itself, or else its line."""
    exit_file = cause.end.exit_file if cause.end else None
    if exit_file and exit_file.hint:
        return f"{exit_file.hint}{_only_wait(cause)}"
    where = _at_its_line(cause)
    if exit_file and (advice := _ADVICE.search(one_line(exit_file.message))):
        return f"{advice[1]} (so says the {cause.culprit.error}{where}){_only_wait(cause)}"
    if cause.culprit.error == "SystemExit":
        return f"find out why the program calls sys.exit(){where}{_only_wait(cause)}"
    return f"fix the {cause.culprit.error} raised{where}{_only_wait(cause)}"


def _at_its_line(cause: Cause) -> str:
    """Return the culprit's line as ` at train.py:12`; empty if it is not known."""
    line = format_line(user_frame(cause.culprit.frames))
    return f" at {line}" if line else ""


def _has_unused_parameters(cause: Cause) -> bool:
    exit_file = cause.end.exit_file if cause.end else None
    return bool(cause.culprit.error and exit_file and UNUSED_PARAMETERS in exit_file.message)


# The end of a process that printed no exception.


def _by_end(cause: Cause) -> str:
    """Return how a process ended that raised no exception."""
    assert cause.end
    how = format_ending(cause.end)
    if cause.end.ending is Ending.CONNECTION_REFUSED:
        how = DEBUG_SERVER  # the title says it in the same words
    elif cause.end.ending is Ending.EXIT_CODE:
        how = f"{_its_process(cause)} ended, and no exception was recorded"
    return _stops_others(how, cause)


def _by_growth(cause: Cause) -> str:
    assert cause.end
    assert cause.growth
    first, last, steps = cause.growth
    grown = f"its memory had grown from {size(first)} to {size(last)} in its last {steps} steps"
    rest = f"{capitalised(grown)} ({size(cause.growth.bytes_a_step)} a step), for which the kernel may have killed it"
    is_code = cause.end.ending is Ending.EXIT_CODE
    how = f"{_its_process(cause)} ended, and no exception was recorded" if is_code else format_ending(cause.end)
    return _stops_others(f"{how}. {rest}", cause)


def _for_growth(cause: Cause) -> str:
    assert cause.growth
    return (
        f"find what the program keeps from step to step ({size(cause.growth.bytes_a_step)} each), such as a list of"
        f" losses with their graphs; whether the kernel killed {rank_names(cause.ranks)} for its memory is in"
        f" {OOM_KILLER}{_only_wait(cause)}"
    )


def _for_end(cause: Cause) -> str:
    """Return what to do about a process that ended without an exception."""
    assert cause.end
    return f"{_find_out(cause, cause.end)}{_only_wait(cause)}"


def _find_out(cause: Cause, end: RankEnd) -> str:
    # No process can catch SIGKILL, so its own log says nothing.
    if end.exit_code == -signal.SIGKILL:
        return (
            f"find out who sent SIGKILL: look for the out-of-memory killer on the host ({OOM_KILLER}), and in the"
            " scheduler's log"
        )
    if end.exit_code == -signal.SIGSEGV and not end.stack:
        return "start the job with PYTHONFAULTHANDLER=1 to get the stack of the crash in the rank's log"
    ranks = rank_names(cause.ranks)
    return f"read the log of {ranks}: its last lines and the exit status show why the process ended"


# No file says how it ended.

_UNREACHABLE = {
    Reason.RAS_DEAD: "the threads of NCCL's RAS in the other processes lost the connection to its process, and it left"
    " no dump as the others did",
    Reason.RAS_SILENT: "NCCL's RAS has a thread in each process, which answers even while the program hangs. That of"
    " its process did not, and it left no dump",
}


def _unreachable(cause: Cause) -> str:
    ranks, they = rank_names(cause.ranks), agree(cause.ranks, "it", "they")
    if cause.reason is Reason.RAS_DEAD:
        verb = agree(cause.ranks, "its process", "their processes")
        return f"{ranks} died{_when(cause)}: NCCL's RAS calls {verb} dead"
    return f"{ranks} probably died{_when(cause)}: {they} left no dump and did not answer NCCL's RAS"


def _read_its_log(cause: Cause) -> str:
    ranks = rank_names(cause.ranks)
    return f"read the log of {ranks}; if its process is still alive, {py_spy(cause.process)} shows where it is"


def _missing(cause: Cause) -> str:
    where = f" in {name}" if (name := name_operation(cause.culprit)) else ""
    are, they = agree(cause.ranks, "is", "are"), agree(cause.ranks, "it", "they")
    gone = f"{rank_names(cause.ranks)} {are} missing{at_step(cause)}{where}"
    return f"{gone}: {they} left no dump, so {they} died or could not write one"


def _for_node(cause: Cause) -> str:
    name = cause.node.name if cause.node else "the node"
    return f"find out whether {name} is up: its power, kernel log and network, and whether the scheduler took it"


def _is_silent(cause: Cause) -> bool:
    return cause.end is None


ENTRIES = (
    HangFailure(
        id="hang.out_of_memory",
        kind=HangClass.DEAD,
        when=lambda cause: cause.culprit.out_of_memory,
        what="A rank ran out of memory and ended; the others wait for it.",
        title="{ranks} ran out of memory{step}{place}",
        why=_failed_allocation,
        next=_see_memory,
        shown_by=lambda cause: format_ending(cause.end) if cause.end else "",
        in_title=True,
        check="a memory snapshot of the rank shows what filled its memory",
    ),
    HangFailure(
        id="hang.lost_node",
        kind=HangClass.DEAD,
        when=lambda cause: cause.node is not None and cause.end is None,
        what="A node died or lost its network, and all its ranks with it.",
        title=lambda cause: (
            f"{named(cause.node)} was lost{_when(cause)}: nothing has come from it since {cause.node.last_time}"
            if cause.node
            else ""
        ),
        why=lambda cause: _stops_others(
            "the node died, or lost its network: a live node reports every few seconds, whatever its ranks do", cause
        ),
        next=_for_node,
        shown_by=lambda cause: f"silent since {cause.node.last_time}" if cause.node else "",
        in_title=True,
    ),
    HangFailure(
        id="hang.unreachable_process",
        kind=HangClass.DEAD,
        reasons=(Reason.RAS_DEAD, Reason.RAS_SILENT),
        when=_is_silent,
        what="A process left no dump and does not answer NCCL's RAS, which has a thread of its own in each process.",
        title=_unreachable,
        why=lambda cause: _stops_others(_UNREACHABLE[cause.reason], cause),
        next=_read_its_log,
        shown_by={
            Reason.RAS_DEAD: "NCCL's RAS reports that the process is unreachable",
            Reason.RAS_SILENT: "NCCL's RAS got no data from the process",
        },
        in_title=True,
        knowledge="docs.nvidia.com, NCCL: Troubleshooting, RAS",
    ),
    HangFailure(
        id="hang.no_dump",
        kind=HangClass.DEAD,
        when=_is_silent,
        what="A rank left no dump where the others did, and no file says how it ended.",
        title=_missing,
        why=lambda cause: _stops_others(f"the other ranks wrote a dump, {rank_names(cause.ranks)} wrote none", cause),
        next=_read_its_log,
        shown_by={
            Reason.NO_DUMP: "{they} left no dump",
            Reason.LOST_DUMP: "the dump of {ranks} is missing or cannot be read",
        },
        in_title=True,
        rules_out="a dump of the rank in another folder, or on its node",
    ),
    HangFailure(
        id="hang.aborted_after_end",
        kind=HangClass.DEAD,
        reasons=(Reason.AFTER_END,),
        severity=Severity.WARNING,
        what="A rank was aborted while its process was taken down, after the training had ended.",
        title=lambda cause: (
            f"{rank_names(cause.ranks)} {agree(cause.ranks, 'was', 'were')} aborted after the training had ended"
        ),
        why="all other ranks ended without an error, so no rank waits, and what the job had written is whole."
        " C++ aborts a process whose threads still run while it is taken down, such as those of gloo; the log then says"
        " `terminate called without an active exception`",
        next="call dist.destroy_process_group() as the last thing on every rank; if a rank is still aborted, end it"
        " with sys.stdout.flush() and os._exit(0)",
        shown_by="all other ranks had ended without an error",
        in_title=True,
        keeps_next=True,
    ),
    HangFailure(
        id="hang.left_early",
        kind=HangClass.DEAD,
        when=lambda cause: bool(cause.end and cause.end.ending is Ending.NO_ERROR) and not cause.culprit.error,
        what="A rank ended normally while the others went on: it had fewer batches, or left the loop.",
        title=lambda cause: (
            f"{rank_names(cause.ranks)} ended normally{_when(cause)}, while the other ranks went on"
            f"{in_line(cause.expected.line) if cause.expected else ''}"
        ),
        why=_by_end,
        next=lambda cause: (
            f"find out why {rank_names(cause.ranks)} ran fewer steps: count its batches, and look for a"
            " return or break that only it reaches, or an `except` that goes on after an error and so leaves out"
            " collectives"
        ),
        shown_by=lambda cause: format_ending(cause.end) if cause.end else "",
        in_title=True,
    ),
    HangFailure(
        id="hang.unused_parameters",
        kind=HangClass.DEAD,
        when=_has_unused_parameters,
        what="A parameter took no part in the loss of a rank, so DDP waits for its gradient.",
        title=_died,
        why=_by_exception,
        next="find the branch of the model that {ranks} did not run in the step before: let every parameter take part"
        " in the loss on every rank, or pass find_unused_parameters=True to DistributedDataParallel",
        shown_by=lambda cause: format_ending(cause.end) if cause.end else "",
        in_title=True,
    ),
    HangFailure(
        id="hang.exception",
        kind=HangClass.DEAD,
        when=lambda cause: bool(cause.culprit.error),
        what="An exception that nothing caught ended a rank; the others wait for it.",
        title=_died,
        why=_by_exception,
        next=_for_exception,
        shown_by=lambda cause: format_ending(cause.end) if cause.end else "",
        in_title=True,
    ),
    HangFailure(
        id="hang.grown_memory",
        kind=HangClass.DEAD,
        when=lambda cause: cause.growth is not None,
        what="A process ended without a word after its memory had grown from step to step.",
        title=_died,
        why=_by_growth,
        next=_for_growth,
        shown_by=lambda cause: format_ending(cause.end) if cause.end else "",
        in_title=True,
        check=f"the kernel's log names a process that it killed: {OOM_KILLER}",
    ),
    HangFailure(
        id="hang.ended",
        kind=HangClass.DEAD,
        what="The process of a rank ended by a signal or with an exit code, and no exception was recorded.",
        title=_died,
        why=_by_end,
        next=_for_end,
        shown_by=lambda cause: format_ending(cause.end) if cause.end else "",
        in_title=True,
    ),
)
