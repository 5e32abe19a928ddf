"""Failures of data loading and of files that are written."""

from analyzers.case.facts import LogClass, Reason
from analyzers.case.hypothesis import Case
from analyzers.case.wording import at_step, first_with, place, quoted, who
from analyzers.failures.entry import Failure


def dataloader_worker(case: Case) -> str:
    """Return the title for the death of a data-loader worker."""
    lead = first_with(case, "signal")
    if case.reason is Reason.WORKER_TIMEOUT:
        return f"the data loader of {who(case.ranks)} timed out{at_step(lead)}"
    if case.reason is Reason.SHARED_MEMORY and not lead.facts.signal:
        return f"the data loader of {who(case.ranks)} ran out of shared memory{at_step(lead)}"
    how = f"was killed by {_signal_text(lead.facts.signal)}" if lead.facts.signal else "exited unexpectedly"
    return f"a data-loader worker of {who(case.ranks)} {how}{at_step(lead)}"


def _signal_text(described: str) -> str:
    """Return the name of a signal from PyTorch's description of it, such as `SIGKILL` for `Killed`.

    A description without a known name is returned after the word `signal`.
    """
    return {
        "killed": "SIGKILL",
        "segmentation fault": "SIGSEGV (segmentation fault)",
        "bus error": "SIGBUS (bus error)",
    }.get(described.strip(".").lower(), f"signal {described}")


def disk_full(case: Case) -> str:
    """Return the title for a file that could not be written."""
    lead = case.lead
    why = "no space is left" if case.reason is Reason.NO_SPACE else "the file system is probably full"
    return f"{who(case.ranks)} could not write a file{place(lead)}{at_step(lead)}, as {why}: {quoted(lead)}"


_WORKERS = {
    Reason.SHARED_MEMORY: "give the container more shared memory (`--shm-size=16g`, or mount /dev/shm), or use fewer"
    " workers",
    Reason.WORKER_TIMEOUT: "find the sample or the storage that is slow: set `num_workers=0` to see the stack, or raise"
    " `timeout=`",
    Reason.WORKER_EXIT: "set `num_workers=0` for one run: the exception then appears in the rank itself",
}


def _for_worker(case: Case) -> str:
    """Return what to look at when a data-loader worker died."""
    if case.reason in _WORKERS:
        return _WORKERS[case.reason]
    name = first_with(case, "signal").facts.signal or ""
    if "us error" in name:
        return _WORKERS[Reason.SHARED_MEMORY]
    if name.startswith("Killed"):
        return (
            "check with `dmesg -T` whether the kernel's out-of-memory killer ended it. If so, use fewer workers or a"
            " smaller prefetch_factor, or ask for more host memory"
        )
    return "set `num_workers=0` and run with `python -X faulthandler` to see which sample or library crashes"


ENTRIES = (
    Failure(
        id="data.worker",
        kind=LogClass.DATALOADER_WORKER,
        what="A worker process of a DataLoader died or delivered nothing.",
        when=lambda case: case.kind is LogClass.DATALOADER_WORKER,
        headline=dataloader_worker,
        sentence=dataloader_worker,
        why="the training process fails when a worker of its DataLoader dies or delivers no batches",
        next=(_for_worker,),
    ),
    Failure(
        id="data.disk_full",
        kind=LogClass.DISK_FULL,
        what="A file could not be written to its end.",
        when=lambda case: case.kind is LogClass.DISK_FULL,
        headline=disk_full,
        sentence=disk_full,
        why="a write stopped before all bytes were written, as on a full disk or beyond a quota",
        next=(
            (
                "free space or raise the quota where the file is written (`df -h`, `quota -s`), and check the last"
                " checkpoint: it may be truncated"
            ),
        ),
    ),
)
