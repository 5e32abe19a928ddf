"""One look at all ranks of a node: Flight Recorder first, stacks next, signals last.

Standard library only: this runs outside the ranks.
"""

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
from workbench.recorders.hang.rank_process import Worker

PICKLE_TIMEOUT_S = 2.5
PICKLE_AGAIN_S = 0.5  # a second chance for a rank that was busy and does not hold the GIL
JSON_TIMEOUT_S = 4.0
STACKS_TIMEOUT_S = 2.0
PY_SPY_TIMEOUT_S = 5.0
Answer = dict[str, Any]


def look(workers: Sequence[Worker], folder: Path, number: int, *, last: bool = True) -> dict[str, Any]:
    """Ask all workers at once and store what they answer in `folder`. Returns a round of `collection.json`.

    Signals are sent in the last look only: they end a sleep, so that a stuck rank may go on.
    """
    asked_ns = time.time_ns()
    for worker in workers:
        worker.holds_gil = worker.holds_gil and number > 1
    answers: dict[int, Answer] = {worker.rank: blank(worker) for worker in workers}
    for question in (messages, recorder, stacks_by_http, stacks_by_py_spy, *([stacks_by_signal] if last else [])):
        everywhere(question, workers, answers, folder)
    return {"round": number, "asked_ns": asked_ns, "ranks": {str(rank): answers[rank] for rank in sorted(answers)}}


def everywhere(
    question: Callable[[Worker, Answer, Path], None],
    workers: Sequence[Worker],
    answers: dict[int, Answer],
    folder: Path,
) -> None:
    """Put one question to all workers at once and wait for the last answer."""
    with ThreadPoolExecutor(max_workers=max(1, len(workers))) as pool:
        list(pool.map(lambda worker: question(worker, answers[worker.rank], folder), workers))


def blank(worker: Worker) -> Answer:
    """The answer of a rank that says nothing, with what can be seen from outside."""
    beat = worker.beat
    return {
        "status": "unregistered" if worker.side is None else "exited" if worker.gone else "timeout",
        "channel": None,
        "asked_ns": time.time_ns(),
        "answered_ns": None,
        "file": None,
        "stacks": None,
        "exit_code": None,
        "process": worker.process,
        "heartbeat": None if beat is None else {key: asdict(beat)[key] for key in ("step", "phase", "time_ns")},
    }


def messages(worker: Worker, _answer: Answer, folder: Path) -> None:
    """Its counts of sends and receives; they need no answer of the rank."""
    if counts := worker.messages:
        write_bytes(folder / f"p2p_{worker.rank}.bin", counts)


def recorder(worker: Worker, answer: Answer, folder: Path) -> None:
    """The rank's Flight Recorder: a pickle with frames, or JSON where something holds the GIL."""
    if answer["status"] != "timeout" or answer["process"] == "stopped":  # it would keep the others waiting
        return
    answer["asked_ns"] = time.time_ns()
    patience = PICKLE_AGAIN_S if worker.holds_gil else PICKLE_TIMEOUT_S
    worker.holds_gil = not fetch(worker, answer, folder, "pickle", patience) and answer["status"] == "timeout"
    if answer["status"] != "ok":
        fetch(worker, answer, folder, "json", JSON_TIMEOUT_S)


def fetch(worker: Worker, answer: Answer, folder: Path, channel: str, timeout: float) -> bool:
    """Fetch one form of the dump, note how that went, and say whether it is there."""
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
        answer["status"] = "exited" if worker.gone else "refused"
        return False
    write_bytes(folder / name, body)
    answer.update(status="ok", channel=channel, answered_ns=time.time_ns(), file=name)
    return True


def stacks_by_http(worker: Worker, answer: Answer, folder: Path) -> None:
    """Python stacks of all threads; needs the GIL."""
    if answer["status"] != "ok" or worker.holds_gil:
        return
    try:
        body = worker.ask("dump_traceback", STACKS_TIMEOUT_S)
    except OSError:
        return
    write_bytes(folder / f"stacks_{worker.rank}.txt", body)
    answer["stacks"] = "http"


def stacks_by_py_spy(worker: Worker, answer: Answer, folder: Path) -> None:
    """Python stacks from outside, where py-spy is there and may look: of a rank that holds the GIL or is stopped."""
    tool = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if answer["stacks"] or answer["status"] not in ("ok", "timeout") or worker.gone or worker.side is None or not tool:
        return
    command = [tool, "dump", "--nonblocking", "--full-filenames", "--pid", str(worker.side["pid"])]
    try:
        done = subprocess.run(command, capture_output=True, timeout=PY_SPY_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return
    write_bytes(folder / f"stacks_{worker.rank}.txt", done.stdout)
    answer["stacks"] = "py-spy"


def stacks_by_signal(worker: Worker, answer: Answer, folder: Path) -> None:
    """Python stacks by a signal, for a rank that answered no other way."""
    if answer["stacks"] or answer["status"] not in ("ok", "timeout") or worker.gone:
        return
    try:
        body = worker.signal_stacks(STACKS_TIMEOUT_S)
    except OSError:
        return
    if body:
        write_bytes(folder / f"stacks_{worker.rank}.txt", body)
        answer["stacks"] = "signal"
