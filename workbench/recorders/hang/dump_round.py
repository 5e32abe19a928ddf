"""Take one round of dumps: the Flight Recorder dump and the Python stacks of each rank on the node.

Stacks are requested in three ways, until one works: from the rank's HTTP server, by py-spy, and by a signal. This
module uses only the standard library, because it runs in the collector, a process outside of the ranks.
"""

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from workbench.recorders.files import write_bytes
from workbench.recorders.hang.rank_process import RankProcess, children_of

_MOST_CHILDREN = 8
_STACKS_TIMEOUT_S = 1.0
_COMMAND_LENGTH = 200


def _describe_children(worker: RankProcess) -> bytes:
    """Return a text about the child processes of rank `worker`, with the stacks of forked ones; empty without any."""
    rank = worker.process
    return b"" if rank is None else b"".join(describe(worker, pid) for pid in children_of(rank)[:_MOST_CHILDREN])


def describe(worker: RankProcess, pid: int) -> bytes:
    """Return a text about process `pid`, a child of rank `worker`: `Process 123: python train.py`, then its stacks.

    The stacks are left out if the child was not forked with the rank's handler for the signal that requests stacks.
    """
    stacks = b""
    with contextlib.suppress(OSError):
        stacks = worker.signal_stacks(_STACKS_TIMEOUT_S, pid)
    return f"Process {pid}: {_command_line(pid)}\n".encode() + stacks + b"\n"


def _command_line(pid: int) -> str:
    """Return the command line of a process as a single line, cut if it is long; empty if the process has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return " ".join(word.decode(errors="replace") for word in words if word).replace("\n", " ")[:_COMMAND_LENGTH]


_PICKLE_TIMEOUT_S = 2.5
_PICKLE_RETRY_S = 0.5  # a second chance for a rank that was busy and does not hold the GIL
_JSON_TIMEOUT_S = 4.0
_DUMP_ROUND_STACKS_TIMEOUT_S = 2.0
_PY_SPY_TIMEOUT_S = 5.0
Answer = dict[str, Any]


def take_round(
    workers: Sequence[RankProcess], folder: Path, number: int, *, send_signals: bool = True
) -> dict[str, object]:
    """Take dumps of all ranks in `workers` in parallel, write them to `folder`, and return the round's JSON entry.

    The entry becomes a part of `collection.json`. `number` is the number of the round, 1 or 2. Without `send_signals`,
    no rank gets a signal: a signal interrupts a sleep and so could change what a stuck rank does.
    """
    asked_ns = time.time_ns()
    for worker in workers:
        # Known from the first round of this set; in a new set the rank may have released the GIL.
        worker.holds_gil = worker.holds_gil and number > 1
    answers: dict[int, Answer] = {worker.rank: unanswered(worker) for worker in workers}
    questions = [_send_recv_counts, _flight_recorder_dump, _stacks_by_http, _stacks_by_py_spy]
    for question in [*questions, *([_stacks_by_signal, _stacks_of_children] if send_signals else [])]:
        _ask_all(question, workers, answers, folder)
    return {"round": number, "asked_ns": asked_ns, "ranks": {str(rank): answers[rank] for rank in sorted(answers)}}


def _ask_all(
    question: Callable[[RankProcess, Answer, Path], None],
    workers: Sequence[RankProcess],
    answers: dict[int, Answer],
    folder: Path,
) -> None:
    """Call the function `question` once for each rank, in parallel, and wait until all calls have returned.

    The arguments of each call are the rank, its entry in `answers`, and `folder`. The function requests one kind of
    dump from the rank, writes the dump to `folder`, and records the outcome in the entry.
    """
    with ThreadPoolExecutor(max_workers=max(1, len(workers))) as pool:
        # `map` raises a worker's exception only when its results are read.
        list(pool.map(lambda worker: question(worker, answers[worker.rank], folder), workers))


def unanswered(worker: RankProcess) -> Answer:
    """Return a rank's entry for `collection.json` as it is before any dump is requested.

    The entry has the state of the rank's process, the signal by which it can be asked for stacks (None if the script
    has taken it) and the last heartbeat. Functions that request dumps fill in the rest.
    """
    beat = worker.heartbeat
    return {
        "status": "unregistered" if worker.side_file is None else "exited" if worker.has_exited else "timeout",
        "channel": None,
        "asked_ns": time.time_ns(),
        "answered_ns": None,
        "file": None,
        "stacks": None,
        "stack_signal": worker.stack_signal,
        "exit_code": None,
        "process": worker.blocked_by,
        "heartbeat": None if beat is None else {key: asdict(beat)[key] for key in ("step", "phase", "time_ns")},
    }


def _send_recv_counts(worker: RankProcess, _answer: Answer, folder: Path) -> None:
    """Write the counts of sends and receives of the rank `worker` to `folder`.

    They are read from a file that the rank has written, so this works even if the rank no longer responds.
    """
    if counts := worker.send_recv_counts:
        write_bytes(folder / f"p2p_{worker.rank}.bin", counts)


def _flight_recorder_dump(worker: RankProcess, answer: Answer, folder: Path) -> None:
    """Write the Flight Recorder dump of the rank `worker` to `folder`, and record the outcome in `answer`.

    First a pickle with stack frames is requested. If this fails, JSON without stack frames is requested: it does not
    need the rank's GIL. A stopped process is not asked.
    """
    # A stopped process never answers: asking it would only keep the other ranks waiting.
    if answer["status"] != "timeout" or answer["process"] == "stopped":
        return
    answer["asked_ns"] = time.time_ns()
    patience = _PICKLE_RETRY_S if worker.holds_gil else _PICKLE_TIMEOUT_S
    worker.holds_gil = not fetch(worker, answer, folder, "pickle", patience) and answer["status"] == "timeout"
    if answer["status"] != "ok":
        fetch(worker, answer, folder, "json", _JSON_TIMEOUT_S)


def fetch(worker: RankProcess, answer: Answer, folder: Path, channel: str, timeout: float) -> bool:
    """Request a rank's Flight Recorder dump and write it to `folder`; return whether it came in time.

    `channel` is the format of the dump, "pickle" or "json", and `timeout` is in seconds. The status and the file name
    are stored in `answer`.
    """
    handler, name = {
        "pickle": ("workbench_fr_trace", f"rank_{worker.rank}"),
        "json": ("fr_trace_json", f"rank_{worker.rank}.json"),
    }[channel]
    try:
        body = worker.ask(handler, timeout)
    except TimeoutError:
        answer["status"] = "timeout"
        return False
    except OSError:
        answer["status"] = "exited" if worker.has_exited else "refused"
        return False
    write_bytes(folder / name, body)
    answer.update(status="ok", channel=channel, answered_ns=time.time_ns(), file=name)
    return True


def _stacks_by_http(worker: RankProcess, answer: Answer, folder: Path) -> None:
    """Write the Python stacks of all threads of the rank `worker` to `folder`, and record this in `answer`.

    The stacks come from the HTTP server of the rank, which needs the rank's GIL.
    """
    if answer["status"] != "ok" or worker.holds_gil:
        return
    try:
        body = worker.ask("dump_traceback", _DUMP_ROUND_STACKS_TIMEOUT_S)
    except OSError:
        return
    write_bytes(folder / f"stacks_{worker.rank}.txt", body)
    answer["stacks"] = "http"


def _needs_stacks(worker: RankProcess, answer: Answer) -> bool:
    """Return whether a rank still runs and none of its stacks have been stored in this round."""
    return not answer["stacks"] and answer["status"] in ("ok", "timeout") and not worker.has_exited


def _stacks_by_py_spy(worker: RankProcess, answer: Answer, folder: Path) -> None:
    """Write the Python stacks of a rank, as py-spy reads them from outside the process, to `folder`.

    This works even for a rank that is stopped or holds the GIL, but py-spy must be installed. Nothing is done if
    `answer` says that there are stacks already; otherwise the outcome is recorded in `answer`.
    """
    tool = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    pid = worker.process
    if not _needs_stacks(worker, answer) or pid is None or not tool:
        return
    # By default py-spy pauses the process while it reads, which would delay a rank that is only slow.
    command = [tool, "dump", "--nonblocking", "--full-filenames", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PY_SPY_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return
    write_bytes(folder / f"stacks_{worker.rank}.txt", done.stdout)
    answer["stacks"] = "py-spy"


def _stacks_by_signal(worker: RankProcess, answer: Answer, folder: Path) -> None:
    """Request the Python stacks of a rank with a signal, and write them to `folder`.

    Nothing is done if `answer` says that there are stacks already.
    """
    if not _needs_stacks(worker, answer):
        return
    try:
        body = worker.signal_stacks(_DUMP_ROUND_STACKS_TIMEOUT_S)
    except OSError:
        return
    if body:
        write_bytes(folder / f"stacks_{worker.rank}.txt", body)
        answer["stacks"] = "signal"


def _stacks_of_children(worker: RankProcess, _answer: Answer, folder: Path) -> None:
    """Write the command lines and stacks of the rank's child processes, such as data-loader workers, to `folder`."""
    if content := _describe_children(worker):
        write_bytes(folder / f"children_{worker.rank}.txt", content)
