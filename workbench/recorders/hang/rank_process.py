"""Observe a rank from outside: whether its process runs, its heartbeat, and its answers to HTTP requests.

This module uses only the standard library, because it runs in the collector, a process outside of the ranks.
"""

import contextlib
import http.client
import os
import signal
import socket
import stat
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.recorders.files import read_json, read_regular
from workbench.recorders.hang.heartbeat import DONE, Beat, read_beat

_LARGEST_PID = 1 << 22
PROC_IS_THERE = Path("/proc/self/fd").exists()
_BLOCKED_STATES = {"T": "stopped", "t": "stopped", "D": "in the kernel"}


LISTENS = "00010000"
"""The flag of a listening Unix socket in `/proc/PID/net/unix`."""


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection over the Unix socket `path`; if process `pid` does not listen on it, connecting fails."""

    def __init__(self, path: str, timeout: float, pid: int) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path, self._pid = path, pid

    def connect(self) -> None:
        """Connect to the Unix socket of the rank.

        Raises:
            OSError: Another process listens there, or none.
        """
        if PROC_IS_THERE and not listens(self._pid, self._path):
            raise ConnectionRefusedError(f"process {self._pid} does not listen on {self._path}")
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
        if PROC_IS_THERE and peer_of(self.sock) != self._pid:
            self.sock.close()
            raise ConnectionRefusedError(f"process {self._pid} does not answer on {self._path}")


def peer_of(connected: socket.socket) -> int:
    """Return the id of the process that listens on the other side of a Unix socket."""
    size = struct.calcsize("3i")
    return int(struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0])


def listens(pid: int, path: str) -> bool:
    """Return whether process `pid` has a socket open that listens on the Unix socket `path`, as Linux says."""
    try:
        rows = [line.split(maxsplit=7) for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()]
    except (OSError, UnicodeDecodeError):
        return False
    inodes = {row[6] for row in rows if len(row) == 8 and row[7] == path and row[3] == LISTENS}
    return any(link in {f"socket:[{inode}]" for inode in inodes} for link in _open_files(pid).values())


def _open_files(pid: int) -> dict[Path, str]:
    """Return {path in /proc: what it links to} of the open files of a process; empty if they cannot be read."""
    found: dict[Path, str] = {}
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found[link] = os.readlink(link)  # noqa: PTH115
    return found


def _has_open(pid: int, path: Path) -> bool:
    """Return whether process `pid` has the regular file at `path` open; a link at `path` does not count."""
    try:
        wanted = path.lstat()
    except OSError:
        return False
    if not stat.S_ISREG(wanted.st_mode):
        return False
    for link in _open_files(pid):
        with contextlib.suppress(OSError):
            if os.path.samestat(link.stat(), wanted):
                return True
    return False


def _catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for the signal `number`; without one, the signal may kill the process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught >> (number - 1) & 1)


def _send_signal(pid: int, number: int, is_right: Callable[[int], bool]) -> bool:
    """Send a signal to a process if `is_right(pid)`, which is asked right before; return whether it was sent.

    The process is held by a descriptor meanwhile, so that no other process can get its id in between.
    """
    try:
        handle = os.pidfd_open(pid)
    except (AttributeError, OSError):
        return False
    try:
        if not is_right(pid):
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def post(server: str, handler: str, timeout: float, pid: int) -> bytes:
    """Send an HTTP POST to `/handler/<handler>` of a rank's worker server, and return the body of the response.

    PyTorch runs this HTTP server in each rank. `server` is the path of a Unix socket, on which process `pid` must
    listen; `timeout` is in seconds.

    Raises:
        OSError: The server does not answer in time, or another process listens there.
    """
    connection = UnixConnection(server, timeout, pid)
    try:
        connection.request("POST", f"/handler/{handler}", headers={"Content-Length": "0"})
        response = connection.getresponse()
        body = response.read()
    except http.client.HTTPException as error:
        raise ConnectionError(str(error)) from error
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK:
        raise ConnectionError(f"{handler} answered {response.status}")
    return body


def read_side_file(folder: Path, rank: int) -> dict[str, Any] | None:
    """Return the content of `groups_R.json` of rank R; None if there is none, or if it is not what a rank writes."""
    side = read_json(folder / "dumps" / f"groups_{rank}.json")
    kinds = {"rank": int, "pid": int, "attempt": int, "host": str, "server": str, "written_ns": int}
    if not isinstance(side, dict) or any(type(side.get(name)) is not kind for name, kind in kinds.items()):
        return None
    return side if side["rank"] == rank and 0 < side["pid"] < _LARGEST_PID else None


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    if not Path("/proc/self").exists():
        return _accepts_signals(pid)
    return _process_state(pid) not in ("", "Z", "X")


def _process_state(pid: int) -> str:
    """Return Linux's letter for the state of a process, such as "S" for sleeping; empty if there is no such process."""
    try:
        # After the last parenthesis: the program's name is in parentheses, and may contain spaces and parentheses.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def start_ticks(pid: int) -> int:
    """Return the start time of a process in clock ticks since the boot, as Linux counts it; 0 if it is unknown."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def _accepts_signals(pid: int) -> bool:
    """Return whether this process may send signals to the process `pid`."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


class RankProcess:
    """A rank on this node, seen from outside through `groups_R.json`, its heartbeat file and its HTTP server.

    The HTTP server is PyTorch's worker server. Each rank R writes the address of the server and its own process id to
    `groups_R.json` when the recorders start.
    """

    def __init__(self, folder: Path, rank: int, attempt: int, *, trusted: bool = False) -> None:
        self.rank, self.trusted = rank, trusted
        self.holds_gil = False
        self._folder = folder
        self._signal_file = folder / "dumps" / f".stacks_{rank}.txt"
        self._message_file = folder / "dumps" / f".p2p_{rank}.bin"
        self._beat_file = folder / "steps" / f"heartbeat_{rank}.bin"
        self._step_log = folder / "steps" / f"rank_{rank}.jsonl"
        self._finished_a_step = False
        self._attempt = attempt
        self._side_content: dict[str, Any] | None = None

    @property
    def side_file(self) -> dict[str, Any] | None:
        """The content of the rank's `groups_R.json`; None until the rank has written it after the last restart."""
        if self._side_content is None:
            content = read_side_file(self._folder, self.rank)
            self._side_content = content if content and content["attempt"] == self._attempt else None
        return self._side_content

    @property
    def heartbeat(self) -> Beat | None:
        """The last heartbeat that the rank's current process has written; None if it has written none."""
        heartbeat = read_beat(self._beat_file)
        return heartbeat if heartbeat and self.side_file and heartbeat.pid == self.side_file["pid"] else None

    @property
    def has_finished_a_step(self) -> bool:
        """Whether the rank's current process has finished a step: the last line of its step log is not a header."""
        if not self._finished_a_step:
            try:
                lines = read_regular(self._step_log).splitlines()
            except OSError:
                return False
            self._finished_a_step = bool(lines) and b'"schema"' not in lines[-1]
        return self._finished_a_step

    @property
    def blocked_by(self) -> str | None:
        """The reason why Linux does not let the process run, "stopped" or "in the kernel"; None if it can run.

        "in the kernel" usually means that the process waits for storage.
        """
        return _BLOCKED_STATES.get(_process_state(self.side_file["pid"])) if self.side_file else None

    @property
    def has_exited(self) -> bool:
        """Whether the rank's process has ended; False if the rank has not written its `groups_R.json` yet."""
        side = self.side_file
        if side is None:
            return False
        # Its process id may belong to another process by now.
        return not is_running(side["pid"]) or bool(side.get("start_ticks", 0) not in (0, start_ticks(side["pid"])))

    @property
    def process(self) -> int | None:
        """The id of the rank's process, if a process of this id is provably the rank; else None.

        A run folder may come from somebody else and name any process. So the process must have started when the rank
        says, belong to the owner of the folder's file of stacks, who is the present user, and have that file open.
        Without /proc, a collector that was started by the rank itself trusts the rank's word.
        """
        side = self.side_file
        if side is None:
            return None
        if not PROC_IS_THERE:
            return side["pid"] if self.trusted else None
        return side["pid"] if self._is_rank(side["pid"]) else None

    def _is_rank(self, pid: int) -> bool:
        ticks = self.side_file and self.side_file.get("start_ticks")
        return type(ticks) is int and ticks == start_ticks(pid) != 0 and self._is_ours(pid)

    def _is_ours(self, pid: int) -> bool:
        try:
            owner = Path(f"/proc/{pid}").stat().st_uid
            own_file = self._signal_file.lstat().st_uid == owner
        except OSError:
            return False
        return own_file and os.geteuid() in (owner, 0) and _has_open(pid, self._signal_file)

    @property
    def stack_signal(self) -> int | None:
        """The signal after which the rank writes its stacks; None if the script has taken it, or there is none."""
        number = (self.side_file or {}).get("stack_signal")
        low, high = getattr(signal, "SIGRTMIN", 0), getattr(signal, "SIGRTMAX", -1)
        return number if type(number) is int and low < number < high else None

    @property
    def ended_cleanly(self) -> bool:
        """Whether the rank recorded that it ended without an error."""
        heartbeat = self.heartbeat
        return heartbeat is not None and heartbeat.phase == DONE

    @property
    def send_recv_counts(self) -> bytes:
        """The content of the file in which the rank counts its sends and receives, without unused rows at the end.

        The result is empty if there is no such file. `hang/send_recv_counts.py` describes the rows.
        """
        try:
            return read_regular(self._message_file).rstrip(b"\0")
        except OSError:
            return b""

    def ask(self, handler: str, timeout: float) -> bytes:
        """Return the response of the rank's HTTP server to a POST to `/handler/<handler>`.

        Raises:
            OSError: The server does not answer in `timeout` seconds, or it is not provably that of the rank.
        """
        pid = self.process
        if pid is None or self.side_file is None:
            raise ConnectionRefusedError(f"no process is provably rank {self.rank}")
        return post(self.side_file["server"], handler, timeout, pid)

    def signal_stacks(self, timeout: float, child: int | None = None) -> bytes:
        """Send the rank its signal, and return the stacks that faulthandler then writes; empty after the timeout.

        With `child`, that process gets the signal, a child that the rank has forked. `timeout` is in seconds.
        faulthandler does not need the GIL, but the signal interrupts a sleep.
        """
        rank, number = self.process, self.stack_signal
        if rank is None or number is None:
            return b""

        def is_right(pid: int) -> bool:
            is_known = self._is_rank(pid) if child is None else self._is_ours(pid) and pid in children_of(rank)
            return is_known and _catches(pid, number)

        # faulthandler appends to the file, which may have the stacks of earlier requests.
        before = self._signal_file.stat().st_size
        if not _send_signal(child or rank, number, is_right):
            return b""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            time.sleep(0.1)
            written = read_regular(self._signal_file)[before:]
            # faulthandler makes many small writes, so a file that still grows is not complete.
            if written.endswith(b"\n") and self._signal_file.stat().st_size == before + len(written):
                return written
        return b""


def children_of(pid: int) -> list[int]:
    """Return the process ids of the children of process `pid`, ascending; the calling process is left out."""
    found: list[int] = []
    # Linux lists a child under the thread that started it, not under the process.
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    # Local rank 0 may have started the collector, which is then one of its children.
    return sorted(child for child in found if child != os.getpid())
