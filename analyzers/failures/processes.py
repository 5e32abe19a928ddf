"""Ends of processes: signals, exit codes, and orders to stop."""

from analyzers.case.facts import EventKind, LogClass, Reason
from analyzers.case.hypothesis import Case, Tier
from analyzers.case.wording import at_step, first_with, place, quoted, who
from analyzers.failures.entry import Failure
from analyzers.words import exit_reason


def signal(case: Case) -> str:
    """Return the title for a rank that a signal ended."""
    lead = case.lead
    name = lead.facts.signal or "a signal"
    verb = "was killed by" if name == "SIGKILL" else "crashed with"
    return f"{who(case.ranks)} {verb} {name}{place(lead)}{at_step(lead)}"


def exit_code(case: Case) -> str:
    """Return the title for a rank that failed if the logs show only its exit code."""
    lead = first_with(case, "exit_code")
    code = lead.facts.exit_code
    return f"{who(case.ranks)} ended with {exit_reason(code or 1)}{at_step(lead)}, and these logs do not show why"


def time_limit(case: Case) -> str:
    """Return the title for a job that reached its time limit."""
    return f"the scheduler ended the job at its time limit{at_step(case.lead)}"


def terminated(case: Case) -> str:
    """Return the title for a job that was ended from outside."""
    how = {
        Reason.PREEMPTION: "the scheduler preempted the job",
        Reason.CANCELLED: "the job was cancelled from outside",
    }.get(case.reason or Reason.LAUNCHER_SIGNAL, "the launcher received a signal to stop")
    name = case.lead.facts.signal
    return f"{how}{f' ({name})' if name else ''}{at_step(case.lead)}"


def unknown(case: Case) -> str:
    """Return the title for a cause of unknown class.

    There are two cases: nothing shows whether the program caught an exception or ended with it; or ranks lost their
    connection to a rank that the logs do not name.
    """
    if case.lead.kind is EventKind.EXCEPTION:
        return (
            f"{who(case.failure.ranks)} printed {quoted(case.lead)}{place(case.lead)}, and nothing shows whether the"
            " program caught this exception or ended with it"
        )
    lost = case.failure.events[0]
    ranks = who(case.failure.ranks, "ranks")
    return f"{ranks} lost the connection to a rank that these logs do not name: {quoted(lost)}"


_READ_ALL = (
    "read the output of every rank: torchrun's `--log-dir logs --tee 3` writes a file for each. If none of them shows"
    " the cause, run under `workbench launch -- COMMAND`, which records what each rank waits in"
)
_WHO_ENDED = (
    "find out who ended the job, because no rank failed before: look at `sacct -j JOB`, at the scheduler's log, and for"
    " a `timeout` command or a closed terminal"
)
_NATIVE = (
    "look at the native extension that the line calls; if the title names no line, run with `python -X faulthandler`,"
    " and read the kernel's log (`dmesg -T`) of the node of {ranks} at the time of the crash"
)
_CAUGHT_OR_ENDED = (
    "compare the last step in the log with the number of steps that were planned, and look at the exit code of the job:"
    " both show whether this exception ended it. If it did, open the line that raised it"
)


_PREEMPTED = (
    "resume from the last checkpoint. To lose fewer steps at the next preemption, save checkpoints more often, or let a"
    " handler of SIGTERM save one if the scheduler grants a time of grace (Slurm: GraceTime of the partition)"
)


def _for_unknown(case: Case) -> str:
    """Return how to find the cause if the logs do not show it."""
    return _CAUGHT_OR_ENDED if case.lead.kind is EventKind.EXCEPTION else _READ_ALL


def _for_terminated(case: Case) -> str:
    """Return what to do about a job that was ended from outside."""
    return _PREEMPTED if case.reason is Reason.PREEMPTION else _WHO_ENDED


def _for_signal(case: Case) -> str:
    """Return how to find out why a signal ended a rank; for SIGKILL, whether it came from the kernel's OOM killer."""
    if case.lead.facts.signal == "SIGKILL":
        return (
            "find out who sent SIGKILL, because the log does not show it. Look for the kernel's out-of-memory killer"
            " first (`dmesg -T | grep -i 'killed process'`; under Slurm also `sacct -j JOB -o State,MaxRSS`)"
        )
    return _NATIVE.replace("{ranks}", who(case.ranks, "the failed rank"))


ENTRIES = (
    Failure(
        id="processes.signal",
        kind=LogClass.SIGNAL,
        what="A signal ended a process of the job.",
        when=lambda case: case.kind is LogClass.SIGNAL,
        headline=signal,
        sentence=signal,
        why="a signal ends a process without a Python exception",
        next=(_for_signal,),
    ),
    Failure(
        id="processes.exit_code",
        kind=LogClass.EXIT_CODE,
        what="Only the exit code of a rank is known.",
        when=lambda case: case.kind is LogClass.EXIT_CODE,
        headline=exit_code,
        sentence=exit_code,
        why="",
        next=(
            lambda case: (
                f"read the stderr of {who(case.ranks, 'the failed rank')}; start torchrun with `--log-dir logs"
                " --tee 3`, and wrap main() in `torch.distributed.elastic.multiprocessing.errors.record`"
            ),
        ),
        tier=Tier.EXIT_CODE,
    ),
    Failure(
        id="processes.time_limit",
        kind=LogClass.TIME_LIMIT,
        what="The scheduler ended the job at its time limit.",
        when=lambda case: case.kind is LogClass.TIME_LIMIT,
        headline=time_limit,
        sentence=time_limit,
        why="the job was still running when its time was used up",
        next=(
            (
                "ask for more time, or save checkpoints more often and resume. With Slurm's `--signal=USR1@120` the"
                " script gets SIGUSR1 about 120 s before the limit: let a handler save there, because without one the"
                " signal ends the process"
            ),
        ),
        tier=Tier.STOPPED,
    ),
    Failure(
        id="processes.terminated",
        kind=LogClass.TERMINATED,
        what="The scheduler, a user or a closing shell ended the job.",
        when=lambda case: case.kind is LogClass.TERMINATED,
        headline=terminated,
        sentence=terminated,
        why="such a signal comes from outside the job: from its scheduler, a user or a shell that ends",
        next=(_for_terminated,),
        tier=Tier.STOPPED,
    ),
    Failure(
        id="processes.unknown",
        kind=LogClass.UNKNOWN,
        what="The job ended, and its logs do not show why.",
        when=lambda case: case.kind is LogClass.UNKNOWN,
        headline=unknown,
        sentence=unknown,
        why="",
        next=(_for_unknown,),
        tier=Tier.VAGUE,
    ),
)
