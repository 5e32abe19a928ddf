"""Write what is new in a node's run folder to a URL, repeatedly, until the job has ended.

    URL/nodes/NODE/...            the files of a node, as in its run folder
    URL/nodes/NODE/node.json      which node this is, and when it last wrote (`analyzers.run.Node`)
    URL/incidents/NODE.json       why and when this node last took dumps by itself

If a node takes dumps by itself, because its ranks stalled, died or raised, every other node sees it in `incidents/` and
lets its own collector take dumps, too.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from analyzers.errors import InputError, WorkbenchError
from analyzers.files import open_regular, read_json, read_whole, write_whole
from analyzers.hangs.reading.side_formats import GroupsFile, read_side
from analyzers.run import NODE_FILE, NODES, SKIPPED_FOLDERS, Node
from workbench.console import complain, note
from workbench.errors import UsageProblem
from workbench.remote.file_system import asking, open_file_system
from workbench.remote.urls import without_credentials

_FOLDERS = (
    *("dumps", "steps", "logs", "health", "values", "not_finite", "tb", "profile_traces", "memory_snapshot"),
    *("comm_traces", "comm_trace", "structured_logs", "profiling"),
)
"""The folders in which our recorders and torchtitan write files, those that explain a hang first."""
_LOOSE = re.compile(r"run\.json|[^/]*\.(?:log|out|err|jsonl)|slurm-\d[^/]*")
"""Matches the names of artefacts that are directly in the run folder."""
WEIGHTS = (".safetensors", ".distcp", ".pt", ".pth", ".ckpt")
_MOST_FILES = 50_000
DEEPEST, _NAME_BYTES, _PATH_BYTES = 8, 200, 1000


def _is_artefact(path: str) -> bool:
    """Return whether a relative path names an artefact that may be sent: no checkpoint, no hidden file, no `..`."""
    names = path.split("/")
    if len(names) > DEEPEST or len(path.encode(errors="replace")) > _PATH_BYTES or not all(map(is_plain, names)):
        return False
    if len(names) == 1:
        return bool(_LOOSE.fullmatch(path))
    return names[0] in _FOLDERS and PurePosixPath(path).suffix not in WEIGHTS


def is_plain(name: str) -> bool:
    """Return whether a name is a single visible file name that is safe to print: not `..`, no control characters."""
    return (
        name.isprintable()
        and "/" not in name
        and not name.startswith(".")
        and 0 < len(name.encode(errors="replace")) <= _NAME_BYTES
    )


def _urgency(path: str) -> tuple[int, str]:
    """Return a sort key for files by their use for a verdict: dumps first, then steps and logs, then large files."""
    first = path.split("/", 1)[0]
    return (_FOLDERS.index(first) + 1 if first in _FOLDERS else 0), path


def artefacts_below(folder: Path) -> Iterator[str]:
    """Yield the relative paths of the artefacts below a run folder; links are left out."""
    seen = 0
    for here, folders, names in os.walk(folder):
        below = Path(here).relative_to(folder)
        folders[:] = sorted(name for name in folders if _is_wanted(below / name))
        for path in (str(below / name) for name in sorted(names)):
            seen += 1
            if seen > _MOST_FILES:
                return
            if _is_artefact(path) and _is_file(folder / path):
                yield path


def _is_wanted(folder: Path) -> bool:
    """Return whether a folder, relative to the run folder, may contain artefacts."""
    return folder.name not in SKIPPED_FOLDERS and len(folder.parts) < DEEPEST and _is_artefact(str(folder / "x"))


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


# Exchange information with the collector of a node when dumps are taken, through files in `dumps/` of the run folder.
#
# The collector is the process of the recorders that takes dumps. It writes to `.claimed` why it takes a set of dumps.
# It takes a set when a file appears in which one of its ranks requests dumps.


class Incident(msgspec.Struct, frozen=True):
    """Why a node took dumps by itself, with a detail as text, and when (Unix ns)."""

    reason: str
    detail: str
    asked_ns: int


class Claim(msgspec.Struct):
    """The content of `.claimed` in the folder of a set of dumps; `elsewhere` says that another node began it."""

    reason: str
    detail: str
    asked_ns: int
    elsewhere: bool = False


def last_incident(dumps: Path) -> Incident | None:
    """Return why and when this node's collector last began to take dumps by itself; None if it never did.

    Dumps that were taken because of another node do not count.
    """
    claims = [claim for path in (dumps, *dumps.glob("set_*")) if (claim := _read_claim(path / ".claimed"))]
    own = (claim for claim in claims if not claim.elsewhere)
    last = max(own, key=lambda claim: claim.asked_ns, default=None)
    return Incident(last.reason, last.detail, last.asked_ns) if last else None


def _read_claim(path: Path) -> Claim | None:
    """Return the content of a file `.claimed`; None if it is not written yet."""
    try:
        return msgspec.convert(read_json(path), Claim)
    except (OSError, ValueError, msgspec.ValidationError):
        return None


def request_dumps(dumps: Path, incident: Incident) -> bool:
    """Request dumps from the collector of this node; return whether there is a rank in whose name this is possible."""
    files = (side for path in dumps.glob("groups_*.json") if (side := read_side(path, GroupsFile)))
    rank = min((side.rank for side in files if side.host == socket.gethostname()), default=None)
    if rank is None:
        return False
    request = {
        "reason": incident.reason,
        "detail": incident.detail,
        "time_ns": time.time_ns(),
        "elsewhere": True,
    }
    write_whole(dumps / f".ask_{rank}.json", json.dumps(request))
    return True


NODE = "WORKBENCH_NODE"
"""The environment variable with the name of this node, where host names are not unique."""
INCIDENTS = "incidents"
_PAUSE_S = 5.0
"""The seconds between two looks at the run folder and at the incidents of other nodes."""
_LOOK_S = 0.25
"""The seconds between two checks of whether this node's collector takes dumps, or the job is over."""
_PATIENCE = 10
"""A file that changes all the time is written again only after this many times what its last writing took."""
_SMALL_BYTES = 4096
"""Files up to this size are compared by content: a heartbeat need not change the time of its file."""
_INCIDENT_BYTES = 1 << 16
OTHER_JOB_S = 600.0
"""A node at the URL that was silent for longer is of an earlier job, with which this one is not mixed."""
_LAST_TRIES_S = 60.0
"""The seconds for which a sender that was told to end still tries to write."""
_LONGEST_RETRY_S = 15.0
_QUIET_S = 5.0
"""The seconds without a changed file after which a job whose end is recorded has ended.

Launchers still write after their ranks have ended.
"""
ENDED = ("completed", "failed", "interrupted")
RENAMED = ("file", "local", "sftp", "ssh", "smb", "ftp", "hdfs", "arrow_hdfs")
"""Protocols by which a file appears before it is whole; with them it is written under a hidden name, and renamed.

In object stores a file appears when it is whole, and renaming would copy it.
"""
State = tuple[object, ...]
"""The values that distinguish the present content of a file from an earlier one."""


def node_name() -> str:
    """Return the name of this node, under which it writes its files.

    Raises:
        UsageProblem: The name cannot be that of a folder.
    """
    name = os.environ.get(NODE) or socket.gethostname()
    if not is_plain(name):
        raise UsageProblem(f"{NODE}={name!r} cannot be the name of a folder", "give a short name without slashes")
    return name


class Store:
    """A folder at a URL: files are written to it whole, and small files are read from it."""

    def __init__(self, url: str) -> None:
        self.url = without_credentials(url)
        self._full_url = url
        self._files: Any
        self._files, self._root = open_file_system(url)
        self._folders = set[str]()
        protocol = self._files.protocol
        protocols = {protocol} if isinstance(protocol, str) else set(protocol)
        self._is_renamed, self._is_local = not protocols.isdisjoint(RENAMED), "file" in protocols

    def refuse_links(self, name: str) -> None:
        """Refuse a path in the folder that leads elsewhere: other nodes, who may write here, could have linked it.

        Raises:
            InputError: A part of the path is a link, on a disk of this machine.
        """
        parts = PurePosixPath(name).parts if self._is_local else ()
        for length in range(1, len(parts) + 1):
            path = Path(self._root, *parts[:length])
            if path.is_symlink():
                raise InputError(f"{path} is a link: what is written there would go elsewhere", "remove it")

    def put(self, source: Path, name: str) -> None:
        """Write a file of this machine as `name`, a path in the folder.

        Raises:
            InputError: It cannot be written.
        """
        self.refuse_links(name)
        asking(self._full_url, lambda: self._put(source, name))

    def _put(self, source: Path, name: str) -> None:
        target = f"{self._root.rstrip('/')}/{name}"
        folder, _, last = target.rpartition("/")
        if folder not in self._folders:
            self._files.makedirs(folder, exist_ok=True)
            self._folders.add(folder)
        try:
            if not self._is_renamed:
                self._files.put_file(str(source), target)
                return
            draft = f"{folder}/.{last}.{secrets.token_hex(4)}"
            self._files.put_file(str(source), draft)
            self._files.mv(draft, target)
        except FileNotFoundError:
            self._folders.discard(folder)  # somebody removed it
            raise

    def put_struct(self, content: msgspec.Struct, name: str) -> None:
        """Write a struct as a JSON file.

        Raises:
            InputError: It cannot be written.
        """
        with tempfile.NamedTemporaryFile() as file:
            file.write(msgspec.json.encode(content))
            file.flush()
            self.put(Path(file.name), name)

    def read(self, folder: str, kind: type[Any], file: str = "") -> dict[str, Any]:
        """Return {name: content} of the JSON files in a folder, or of `NAME/file` in it; damaged ones are left out.

        Raises:
            InputError: The folder cannot be listed.
        """
        return asking(self._full_url, lambda: dict(self._read(folder, kind, file)))

    def _read(self, folder: str, kind: type[Any], file: str) -> Iterator[tuple[str, Any]]:
        self._files.invalidate_cache()
        try:
            names = self._files.ls(f"{self._root.rstrip('/')}/{folder}", detail=False)
        except FileNotFoundError:
            return
        for name in names:
            last = str(name).rstrip("/").rpartition("/")[2]
            if not is_plain(last):
                continue
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                path = f"{name}/{file}".rstrip("/")
                # A pipe that another node left would keep an ordinary read waiting.
                content = (
                    read_whole(Path(path), _INCIDENT_BYTES)
                    if self._is_local
                    else self._files.cat_file(path, 0, _INCIDENT_BYTES)
                )
                yield last.removesuffix(".json"), msgspec.json.decode(content, type=kind)


class Sender:
    """Writes the files of the run folder `folder` to a URL under the name `node`; `expected` nodes will do so.

    Raises:
        InputError: The URL cannot be used, or has the files of an earlier job.
    """

    def __init__(self, folder: Path, url: str, node: str, expected: int = 0) -> None:
        self._folder, self._store = folder, Store(url)
        self._session = _session_of(folder, node)
        self._node = self._free_name(node)
        self._store.refuse_links(f"{NODES}/{self._node}/{NODE_FILE}")
        now = time.time_ns()
        self._report = Node(
            session=self._session, host=socket.gethostname(), first_ns=now, last_ns=now, expected=expected
        )
        self._sent: dict[str, State] = {}
        self._next_at: dict[str, float] = {}
        self._incident: Incident | None = None
        self._asked: dict[str, int] = {}
        self._began_ns = now
        self._said = set[str]()

    def _free_name(self, node: str) -> str:
        """Return the name of this node at the URL: another one, if another machine writes there under the same name.

        Raises:
            InputError: The URL has the files of an earlier job.
        """
        nodes: dict[str, Node] = self._store.read(NODES, Node, NODE_FILE)
        silent_s = {name: time.time() - one.last_ns / 1e9 for name, one in nodes.items()}
        old = [name for name, one in nodes.items() if one.session != self._session and silent_s[name] > OTHER_JOB_S]
        if old:
            raise InputError(
                f"{self._store.url} has the files of an earlier job (node {old[0]})",
                "give each job a folder of its own",
            )
        taken = node in nodes and nodes[node].session != self._session
        return f"{node}-{self._session[:6]}" if taken else node

    def run(self, is_over: Callable[[], bool]) -> None:
        """Write what is new until `is_over` returns True, and then write the rest.

        Raises:
            InputError: The rest could not be written.
        """
        failures, give_up_at = 0, float("inf")
        while True:
            ends = is_over()
            if ends:
                give_up_at = min(give_up_at, time.monotonic() + _LAST_TRIES_S)
            try:
                self.send_new(ended=ends)
            except (WorkbenchError, OSError) as error:
                failures += 1
                self._say(f"{error}; trying again")
                if time.monotonic() > give_up_at:
                    hint = f"write the rest later: workbench collect {self._folder} --to {self._store.url}"
                    raise InputError(f"not all files of {self._folder} were written: {error}", hint) from error
            else:
                if ends:
                    return
                failures = 0
            pause_s = min(2.0 ** min(failures, 8), _LONGEST_RETRY_S) if failures else _PAUSE_S
            self._wait(pause_s, is_over)

    def send_new(self, *, ended: bool) -> None:
        """Write every file that has changed, and report this node; `ended` says that nothing will follow.

        Raises:
            InputError: The URL cannot be written or read.
        """
        self._exchange_incidents()
        for path in sorted(artefacts_below(self._folder), key=_urgency):
            if not ended and time.monotonic() < self._next_at.get(path, 0.0):
                continue
            self._send(path)
            if last_incident(self._folder / "dumps") != self._incident:
                self._exchange_incidents()
        self._report.last_ns, self._report.ended = time.time_ns(), ended
        self._report.files = len(self._sent)
        self._store.put_struct(self._report, f"{NODES}/{self._node}/{NODE_FILE}")

    def _send(self, path: str) -> None:
        """Write a file if it has changed since it was written; one that is gone by now is left out.

        Raises:
            InputError: It cannot be written to the URL.
            OSError: There is no room for a copy of it on this machine.
        """
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(open_regular(self._folder / path))
                state = _state_of(file)
            except OSError:
                return
            if state == self._sent.get(path):
                return
            # A copy of what is open here: the path may be another file by now, or a link.
            copy = stack.enter_context(tempfile.NamedTemporaryFile())
            shutil.copyfileobj(file, copy)
            copy.flush()
            began = time.monotonic()
            self._store.put(Path(copy.name), f"{NODES}/{self._node}/{path}")
            self._next_at[path] = time.monotonic() + _PATIENCE * (time.monotonic() - began)
            self._sent[path] = state
            self._report.bytes += copy.tell()

    def _exchange_incidents(self) -> None:
        """Report dumps that this node began to take; if another node reported some, request dumps from this one."""
        own = last_incident(self._folder / "dumps")
        if own and own != self._incident:
            self._store.put_struct(own, f"{INCIDENTS}/{self._node}.json")
        self._incident = own
        reported: dict[str, Incident] = self._store.read(INCIDENTS, Incident)
        for node, incident in reported.items():
            is_new = incident.asked_ns > max(self._asked.get(node, 0), self._began_ns)
            if node != self._node and is_new and request_dumps(self._folder / "dumps", incident):
                self._asked[node] = incident.asked_ns

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            note(f"collect: {text}")

    def _wait(self, seconds: float, is_over: Callable[[], bool]) -> None:
        """Wait until the next look is due, this node's collector begins to take dumps, or the job is over."""
        deadline, before = time.monotonic() + seconds, is_over()
        while time.monotonic() < deadline and is_over() == before:
            time.sleep(_LOOK_S)
            if last_incident(self._folder / "dumps") != self._incident:
                return


def _state_of(file: BufferedReader) -> State:
    status = os.fstat(file.fileno())
    if status.st_size > _SMALL_BYTES:
        return status.st_ino, status.st_size, status.st_mtime_ns
    content = file.read(_SMALL_BYTES)
    file.seek(0)
    return status.st_size, content


def _session_of(folder: Path, node: str) -> str:
    """Return the random name of this node's run in a folder; it is stored there, for a sender that is started again."""
    path = folder / f".collect_{hashlib.sha256(node.encode()).hexdigest()[:8]}"
    try:
        return read_whole(path, 100).decode()
    except (OSError, ValueError):
        folder.mkdir(parents=True, exist_ok=True)
        session = secrets.token_hex(16)
        write_whole(path, session)
        return session


def has_ended(folder: Path) -> bool:
    """Return whether run.json records the end of the job, and no file has changed for some seconds."""
    path = folder / "run.json"
    try:
        status = read_json(path).get("status")
        changed = max(file.stat().st_mtime for file in (path, *(folder / "dumps").glob("*")))
    except (OSError, ValueError, AttributeError):
        return False
    return status in ENDED and time.time() - changed > _QUIET_S


# Write a node's files to a URL in a process beside its launcher.
#
#     python -P -m workbench.collect.beside FOLDER NODES < pipe
#
# The URL, which may hold a password, is in the environment. The launcher writes "done" to the pipe when the job has
# ended. If the pipe closes without it, the launcher was killed.

URL = "WORKBENCH_COLLECT_URL"
DONE = b"done"
_ORPHANED_S = 120.0
"""The seconds after which a sender ends whose launcher was killed, even if nothing records the end of the job."""


@contextlib.contextmanager
def signals_remembered() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGTERM or SIGINT has come inside this context.

    A second signal interrupts the process.
    """
    received: list[int] = []

    def remember(number: int, _frame: object) -> None:
        received.append(number)
        if len(received) > 1:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, remember) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Launcher(threading.Thread):
    """Waits until the launcher writes "done" to standard input (then `is_done` is set), or is killed (see `lost_s`)."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.is_done = False
        self._lost_at: float | None = None
        self.start()

    @property
    def lost_s(self) -> float:
        """Seconds since the launcher was killed; 0 if it was not."""
        return 0.0 if self._lost_at is None else time.monotonic() - self._lost_at

    def run(self) -> None:
        self.is_done = sys.stdin.buffer.read() == DONE
        self._lost_at = None if self.is_done else time.monotonic()


def main() -> None:
    """Write the files of a folder until the launcher says that the job has ended; without it, until the job has."""
    folder, launcher = Path(sys.argv[1]), Launcher()

    def is_over() -> bool:
        return launcher.is_done or launcher.lost_s > _ORPHANED_S or bool(launcher.lost_s and has_ended(folder))

    try:
        Sender(folder, os.environ[URL], node_name(), int(sys.argv[2])).run(is_over)
    except WorkbenchError as error:
        complain(error.message, error.hint)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
