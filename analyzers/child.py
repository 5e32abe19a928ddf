"""Reading in a process of its own, which limits itself before it opens an artefact: those can be hostile and huge.

It is forked where no other thread runs, which spares it to start and import anew, and started afresh elsewhere: a
thread may hold a lock that the forked process would wait for in vain.
"""

import importlib
import os
import resource
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec
import numpy as np

from analyzers.errors import HostileInput, InputError, LimitExceeded, WorkbenchError

PACKAGE_ROOT = Path(__file__).resolve().parent.parent
DONE, CRASHED, FAILED = 0, 1, 3
"""Exit statuses of a child: FAILED says what is wrong with the input, CRASHED what is wrong with the reader."""


@dataclass(frozen=True)
class Task:
    """What a child has to do: read `paths`, write the columns to `target`, in so many bytes and processor seconds."""

    reader: str
    target: Path
    paths: Sequence[Path]
    memory: int
    seconds: int


class Ended(NamedTuple):
    """How a child ended: its status (that of a signal is negative), and what it said."""

    status: int
    told: bytes


def read_in_child(paths: Sequence[Path], reader: str, target: Path, max_memory: int | None) -> None:
    """Run the reader in a process of its own and turn its end into a result or an error."""
    size = sum(path.stat().st_size for path in paths)
    memory = max_memory or (1 << 30) + size * (48 if any(p.suffix == ".gz" for p in paths) else 8)
    task = Task(reader, target, paths, memory, seconds=10 + size // 1_000_000)  # real recordings take far less
    alone = sys.platform == "linux" and threading.active_count() == 1
    ended = forked(task) if alone else started(task)
    if ended.status != DONE:
        raise explain(ended, task)


def started(task: Task) -> Ended:
    """Do the task in a fresh interpreter."""
    import subprocess

    # An empty entry of PYTHONPATH is the working folder, whose modules could hide those of the standard library.
    search = [str(PACKAGE_ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    limits = str(task.memory), str(task.seconds)
    child = subprocess.run(  # noqa: PLW1510  # the status is looked at by the caller
        # -P: a module beside the artefact must not be imported in place of ours.
        [sys.executable, "-P", "-m", "analyzers.child", task.reader, str(task.target), *limits],
        input=b"\0".join(os.fsencode(path) for path in task.paths),
        capture_output=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(search), "OPENBLAS_NUM_THREADS": "1"},
    )
    return Ended(child.returncode, child.stdout or child.stderr)


def forked(task: Task) -> Ended:
    """Do the task in a copy of this process, whose own memory does not count."""
    reading, writing = os.pipe()
    own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    process = os.fork()
    if not process:
        os.close(reading)
        work_and_leave(task, own, writing)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as pipe:
            told = pipe.read()
        _, status = os.waitpid(process, 0)
    except BaseException:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        raise
    return Ended(os.waitstatus_to_exitcode(status), told)


def work_and_leave(task: Task, own: int, pipe: int) -> NoReturn:
    """What the forked process does; nothing that its parent had begun, such as text not yet written, must go on."""
    status = CRASHED
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        sys.stdout = sys.stderr = os.fdopen(nowhere, "w")
        limit_self(own + task.memory, task.seconds)
        status, told = done(task)
        os.write(pipe, told)
    except BaseException as error:  # noqa: BLE001  # nobody else would tell of it
        os.write(pipe, f"{type(error).__name__}: {error}".encode(errors="replace"))
    finally:
        os._exit(status)


def explain(ended: Ended, task: Task) -> WorkbenchError:
    """The error that a child's end stands for."""
    name = str(task.paths[0]) if len(task.paths) == 1 else f"{task.paths[0].parent} ({len(task.paths)} files)"
    if ended.status == FAILED:
        told = msgspec.json.decode(ended.told)
        kinds = {kind.__name__: kind for kind in (HostileInput, LimitExceeded)}
        return kinds.get(told["kind"], InputError)(f"{name}: {told['message']}", told["hint"])
    if ended.status in (-signal.SIGXCPU, -signal.SIGKILL):
        return LimitExceeded(
            f"{name}: reading took more than {task.seconds} s of processor time", "is it a real recording?"
        )
    complaint = ended.told.decode(errors="replace").strip().splitlines() or ["no message"]
    if b"MemoryError" in ended.told:
        return LimitExceeded(
            f"{name}: reading needs more than {task.memory >> 20} MiB of memory",
            "raise --max-memory if you trust the file",
        )
    return InputError(
        f"{name}: the reader failed: {complaint[-1]}", "report it with the file, or with its first kilobyte"
    )


def done(task: Task) -> tuple[int, bytes]:
    """Read and write; the exit status, and what there is to say."""
    try:
        write(task.target, *importlib.import_module(task.reader).read(list(task.paths)))
    except WorkbenchError as error:
        told = {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
    except (OSError, EOFError) as error:
        told = {"kind": "InputError", "message": str(error), "hint": "was the file copied whole?"}
    except RecursionError:
        told = {"kind": "HostileInput", "message": "nested too deeply", "hint": "no recorder writes such a file"}
    else:
        return DONE, b""
    return FAILED, msgspec.json.encode(told)


def write(folder: Path, columns: Mapping[str, "np.ndarray[Any, Any]"], meta: dict[str, Any]) -> None:
    """Lay columns down as `store.Columns` finds them; `meta.json` comes last and marks the set as whole."""
    for name, column in columns.items():
        np.save(folder / f"{name}.npy", column, allow_pickle=False)
    (folder / "meta.json").write_bytes(msgspec.json.encode(meta | {"__columns__": list(columns)}))


def limit_self(memory: int, seconds: int) -> None:
    """Bound this process's address space (bytes) and processor time (seconds), before any input is opened."""
    for kind, limit in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(kind)
        wanted = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (wanted, wanted))


def main(reader: str, target: str, memory: str, seconds: str) -> int:
    """The reading process that was started afresh; the paths come on stdin."""
    importlib.import_module(reader)  # what it imports is not the input's to pay for
    limit_self(int(memory), int(seconds))
    paths = [Path(os.fsdecode(name)) for name in sys.stdin.buffer.read().split(b"\0")]
    status, told = done(Task(reader, Path(target), paths, int(memory), int(seconds)))
    sys.stdout.buffer.write(told)
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
