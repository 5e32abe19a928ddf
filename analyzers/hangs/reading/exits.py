"""Find out how ranks ended: by an error of their own, by a signal, or because of another rank."""

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from analyzers.files import open_regular, read_json
from analyzers.hangs.model import Frame
from analyzers.hangs.reading.side_formats import ExitFile, GroupsFile, read_side
from analyzers.log_signs import failed_ranks, split_hint
from analyzers.run import Kind, Run, first_ranks

ORDERLY_SIGNALS = (-15, -2)
"""The exit codes after SIGTERM and SIGINT, the signals with which a launcher ends the remaining ranks."""
_ABORTED, BACKWARD = "Aborted", "_engine_run_backward"
_INNERMOST_FRAMES = 4
COMMUNICATION = re.compile(
    r"\bgloo\b|\bnccl|c10d|rendezvous|monitoredbarrier|processgroup|\bDist\w*Error|store\b.{0,200}(?:get|wait)",
    re.IGNORECASE,
)
"""Matches PyTorch's own error on a rank whose peer died or does not arrive."""
_SENT_TO_ITSELF = re.compile(r"Pair is not connected \(.{1,80}<--> \[none\]\)")
"""Matches gloo's error in a rank that names itself as its peer; a rank has no connection to itself."""
_OWN_ARGUMENTS = re.compile(
    r"enforce fail at \S*gloo/(?!transport/)|\bProcessGroup\w+::\w+:? (?:invalid|requires|unsupported|takes)"
)
"""Matches errors in which gloo or a process group refuses the arguments of the rank's own call.

They name the library, as errors about other ranks do, but are raised before anything is sent. An example is an
all_to_all whose split sizes do not fit.
"""
_CONNECTION = re.compile(r"connection (?:closed|reset|refused)|timed? ?out|socket|broken pipe", re.IGNORECASE)
"""Matches errors about lost connections and timeouts.

Such an error means that another rank ended only if PyTorch raised it. User code may also read data over connections.
"""


class Ending(StrEnum):
    """The way in which a rank ended, as far as it is known."""

    EXCEPTION = "exception"
    EXIT_CODE = "exit_code"
    NO_ERROR = "no_error"
    PROCESS_EXITED = "process_exited"
    """The process no longer existed when its dump was requested; nothing says how it ended."""
    CONNECTION_REFUSED = "connection_refused"


@dataclass(frozen=True)
class RankEnd:
    """The end of a rank; `is_victim` says that it ended because of another rank. `exit_code` is -N for signal N.

    `signal` is Python's name of the fatal signal (`Aborted`), and `stack` the main thread's stack at that moment.
    `sizes` is (bytes received, bytes expected) if gloo aborted the rank because the two differ. `time_ns` is 0 if
    unknown.
    """

    rank: int
    ending: Ending
    is_victim: bool = False
    exit_code: int = 0
    time_ns: int = 0
    exit_file: ExitFile | None = None
    signal: str = ""
    stack: list[Frame] = field(default_factory=list)
    sizes: tuple[int, int] | None = None

    @property
    def is_size_abort(self) -> bool:
        """Whether gloo aborted the rank in a collective, which happens if members pass tensors of different sizes."""
        return self.sizes is not None or (self.signal == _ABORTED and _in_collective(self.stack))

    @property
    def is_silent(self) -> bool:
        """Whether the process disappeared without a word, or by SIGKILL, as the out-of-memory killer ends processes."""
        if self.exit_file or self.signal or self.ending is Ending.NO_ERROR:
            return False
        return self.exit_code in (0, -signal.SIGKILL)

    @property
    def is_killed(self) -> bool:
        """Whether a signal ended the process that no other rank causes; SIGABRT may follow from a lost connection."""
        return -self.exit_code in (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)

    @property
    def is_shutdown(self) -> bool:
        """Whether only a signal ended the process with which launchers end the remaining ranks after a failure."""
        return self.exit_file is None and self.exit_code in ORDERLY_SIGNALS

    @property
    def is_abort(self) -> bool:
        """Whether SIGABRT ended the process, as C++ does after an error that nothing catches."""
        return self.signal == _ABORTED or self.exit_code == -signal.SIGABRT

    @property
    def is_raised_in_collective(self) -> bool:
        """Whether the exception that ended the rank was raised inside of a call of `torch.distributed`."""
        return self.exit_file is not None and _in_collective(self.exit_file.traceback)


def _in_collective(stack: list[Frame]) -> bool:
    """Return whether the innermost frames of a stack are in `torch.distributed` or in a backward pass.

    A backward pass counts because DDP issues its collectives there.
    """
    innermost = stack[:_INNERMOST_FRAMES]
    return any("/torch/distributed/" in f.filename or f.name == BACKWARD for f in innermost)


def is_victim(end: ExitFile) -> bool:
    """Return whether the error of a rank was caused by another rank, which had ended or did not arrive in time."""
    if end.out_of_memory or _SENT_TO_ITSELF.search(end.message) or _OWN_ARGUMENTS.search(end.message):
        return False
    if failed := failed_ranks(end.message):
        return end.rank not in failed
    # Only the exception's own words tell the two apart: PyTorch raises a plain RuntimeError for a lost connection.
    text = f"{end.error} {end.message}"
    # Without a traceback the words alone decide, as if the exception came from PyTorch.
    innermost = end.traceback[0].filename if end.traceback else "/torch/"
    return bool(COMMUNICATION.search(text) or ("/torch/" in innermost and _CONNECTION.search(text)))


# Read the files that torchrun keeps of its workers, `error.json` and logs; their folders are named by local rank.
#
# The path of a file is `<run folder>/logs/<launch>/attempt_<n>/<local rank>/error.json`. The local rank is the rank
# within a node. A launch is one torchrun command; each node runs one. An attempt is one start of all workers;
# torchrun counts attempts up at each restart.

_TRACEBACK_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')
_WORKER = re.compile(r"(?P<launch>.*)/attempt_(?P<attempt>\d+)/(?P<local_rank>\d+)/[^/]+")
_LOG_BYTES, _LOG_LINES = 4096, 3
_BYTES_BEFORE_STACKS = 1 << 16
"""The number of bytes at the end of a log that are searched for the message of an abort.

The stacks of all threads, which faulthandler may write after this message, take some of them.
"""
_NOTICE = re.compile(r"(?:\[rank\d+\]:)?\[[IW]\d{3,4} ")
"""Matches lines in which PyTorch's own servers report that they start or stop."""
_GLOO_SIZES = re.compile(r"EnforceNotMet'[^$]{0,300}?op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_UNKNOWN_RANK = -1


@dataclass(frozen=True)
class Worker:
    """A file of one torchrun worker; `rank` is None if it is not known on which node the worker ran.

    `attempt` is how many times the job had been restarted before this worker started.
    """

    path: Path
    attempt: int
    rank: int | None


def _find_workers(run: Run, kind: Kind) -> Iterator[Worker]:
    """Yield each file of a kind that a worker wrote, with the worker's rank and the attempt (number of restarts)."""
    matches = [(match, a.path) for a in run.of(kind) if (match := _WORKER.fullmatch(str(a.path)))]
    files = run.of(Kind.GROUPS) if matches else []
    sides = [(a.path, side) for a in files if (side := read_side(a.path, GroupsFile))]
    launches = {match["launch"] for match, _ in matches}
    ranks = {launch: _ranks_of_launch(Path(launch), launches, sides) for launch in launches}
    first = first_ranks(run.manifest())
    for match, path in matches:
        local_rank, launch = int(match["local_rank"]), Path(match["launch"]).name
        if launch in first:
            yield Worker(path, int(match["attempt"]), first[launch] + local_rank)
            continue
        known = ranks[match["launch"]]
        yield Worker(path, int(match["attempt"]), local_rank if known is None else known.get(local_rank))


def _ranks_of_launch(launch: Path, launches: set[str], sides: list[tuple[Path, GroupsFile]]) -> dict[int, int] | None:
    """Return {local rank: global rank} of one torchrun launch (one command on one node), from files in the run folder.

    None means that local and global ranks are equal. An empty dict means that no file shows on which node the launch
    ran. `launch` is its log folder, `launches` are the log folders of all launches; `sides` has (path, content) of
    `groups_R.json` for each rank R.
    """
    named = [side for _, side in sides if launch.name in Path(side.error_file or "").parts]
    if named:
        return _by_local_rank(named)
    run_folder = launch.parent.parent
    if sum(Path(other).parent.parent == run_folder for other in launches) > 1:
        return {}
    here = [side for path, side in sides if path.is_relative_to(run_folder) and side.local_rank is not None]
    if not here:
        return None if len(launches) == 1 else {}
    known = _by_local_rank(here)
    # Two ranks with one local rank: the folder holds side files of several nodes.
    return known if len(known) == len(here) else {}


def _by_local_rank(sides: Sequence[GroupsFile]) -> dict[int, int]:
    return {side.local_rank: side.rank for side in sides if side.local_rank is not None}


def read_errors(run: Run) -> list[tuple[ExitFile, str]]:
    """Return the uncaught exception of each worker process of a run, as (exception, path of its file).

    torchrun writes these files (`error.json`). Exceptions of workers from before a restart are included. If no file
    shows which rank a worker was, the rank of its exception is `_UNKNOWN_RANK`.
    """
    read = (
        (_read_error(w.path, _UNKNOWN_RANK if w.rank is None else w.rank), str(w.path))
        for w in _find_workers(run, Kind.ERROR)
    )
    return [(exit_file, path) for exit_file, path in read if exit_file]


def read_last_errors(run: Run) -> dict[int, ExitFile]:
    files = _of_last_attempt(run, Kind.ERROR)
    return {rank: exit_file for rank, path in files.items() if (exit_file := _read_error(path, rank))}


def find_log_files(run: Run) -> dict[int, Path]:
    return _of_last_attempt(run, Kind.LOG, "stderr.log")


def _of_last_attempt(run: Run, kind: Kind, name: str | None = None) -> dict[int, Path]:
    """Return {rank: path} of the files of one kind since the last restart; with `name`, only files of that name."""
    # Logs count too: an attempt whose workers were killed leaves no error.json.
    every = [*_find_workers(run, Kind.ERROR), *_find_workers(run, Kind.LOG)]
    last = max((w.attempt for w in every), default=0)
    matching = (w for w in _find_workers(run, kind) if w.attempt == last and name in (None, w.path.name))
    return {w.rank: w.path for w in matching if w.rank is not None}


def _read_error(path: Path, rank: int) -> ExitFile | None:
    """Return the error in torchrun's `error.json` as an error of `rank`; None if the file cannot be read.

    The file has {message: text} or {message: {message, extraInfo: {py_callstack, timestamp}}}.
    """
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return None
    error = content.get("message") if isinstance(content, dict) else None
    error = {"message": error} if isinstance(error, str) else error
    return _exit_file_of(error, rank) if isinstance(error, dict) else None


def _exit_file_of(error: Mapping[str, object], rank: int) -> ExitFile:
    """Return an error from torchrun as an `ExitFile` of `rank`, the form in which the recorders write errors.

    Torchrun's timestamp has whole seconds, so `time_ns` is the end of that second.
    """
    extra = error.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    first_line = next(iter(str(error.get("message", "")).strip().splitlines()), "")
    name, _, message = first_line.partition(": ")
    stamp = str(extra.get("timestamp", ""))
    # Python prints the innermost frame last; here it comes first.
    frames = _TRACEBACK_LINE.finditer(str(extra.get("py_callstack", "")))
    return ExitFile(
        rank=rank,
        error=name[:300],
        message=message[:300],
        out_of_memory="OutOfMemoryError" in name or name == "MemoryError",
        traceback=[Frame(f["name"], f["file"], int(f["line"])) for f in frames][::-1],
        time_ns=(int(stamp) + 1) * 1_000_000_000 if re.fullmatch(r"[0-9]{1,10}", stamp) else 0,
        hint=split_hint(str(error.get("message", "")))[1],
    )


def read_last_lines(log: Path) -> str:
    lines = (line.strip() for line in COLOURS.sub("", _read_tail(log)).splitlines())
    return " | ".join([line for line in lines if line and not _NOTICE.match(line)][-_LOG_LINES:])[:500]


_NEVER_RETRIEVED = re.compile(r"^(?:Task|Future) exception was never retrieved$", re.MULTILINE)
_LAST_LINE = re.compile(r"^(?P<error>[A-Za-z_][\w.]{0,200})(?:: (?P<message>.*))?$", re.MULTILINE)


def read_task_error(log: Path, rank: int) -> ExitFile | None:
    """Return the last exception in a log that ended a task of asyncio, whose result nothing has asked for; else None.

    What waits for such a task to set an event, or to fill a queue, waits for ever.
    """
    text = COLOURS.sub("", _read_tail(log, _BYTES_BEFORE_STACKS))
    starts = [match.end() for match in _NEVER_RETRIEVED.finditer(text)]
    trace = text[starts[-1] :].partition("Traceback (most recent call last):\n")[2] if starts else ""
    last = next((match for match in _LAST_LINE.finditer(trace) if match.start() > 0), None)
    if last is None:
        return None
    frames = [Frame(f["name"], f["file"], int(f["line"])) for f in _TRACEBACK_LINE.finditer(trace[: last.start()])]
    return ExitFile(rank=rank, error=last["error"], message=(last["message"] or "").strip(), traceback=frames[::-1])


def read_gloo_sizes(log: Path) -> tuple[int, int] | None:
    """Return the sizes (received, expected) in bytes that gloo logged when it aborted a rank because they differ.

    The result is None if the log has no such message.
    """
    match = _GLOO_SIZES.search(_read_tail(log, _BYTES_BEFORE_STACKS))
    return (int(match[1]), int(match[2])) if match else None


def _read_tail(log: Path, size: int = _LOG_BYTES) -> str:
    """Return the last `size` bytes of a log as text; empty if it cannot be read."""
    try:
        with open_regular(log) as file:
            file.seek(max(0, log.stat().st_size - size))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
