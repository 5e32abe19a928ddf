"""One rank as the collector sees it: is it alive, where is it, and what does its worker server answer.

Standard library only: this runs outside the ranks.
"""

import http.client
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

from workbench.recorders.files import read_json
from workbench.recorders.hang.heartbeat import DONE, Beat, read_beat

HELD = {"T": "stopped", "t": "stopped", "D": "in the kernel"}


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket's path."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def post(server: str, handler: str, timeout: float) -> bytes:
    """Call a handler of a rank's worker server, given as a socket's path or host:port. Raises OSError."""
    connection = (
        UnixConnection(server, timeout)
        if server.startswith("/")
        else http.client.HTTPConnection(server, timeout=timeout)
    )
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


def is_running(pid: int) -> bool:
    """Whether the process lives; a zombie does not."""
    if not Path("/proc/self").exists():
        return responds(pid)
    return state_of(pid) not in ("", "Z", "X")


def state_of(pid: int) -> str:
    """The letter by which Linux says what a process does; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def responds(pid: int) -> bool:
    """Whether a signal could be sent to the process."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


class Worker:
    """A rank of this node, known from its side file and heartbeat."""

    def __init__(self, folder: Path, rank: int, attempt: int) -> None:
        self.rank = rank
        self.holds_gil = False
        self._side_file = folder / "dumps" / f"groups_{rank}.json"
        self._signal_file = folder / "dumps" / f".stacks_{rank}.txt"
        self._message_file = folder / "dumps" / f".p2p_{rank}.bin"
        self._beat_file = folder / "steps" / f"heartbeat_{rank}.bin"
        self._step_log = folder / "steps" / f"rank_{rank}.jsonl"
        self._begun = False
        self._attempt = attempt
        self._side: dict[str, Any] | None = None

    @property
    def side(self) -> dict[str, Any] | None:
        """The rank's side file, once it has been written in this attempt."""
        if self._side is None:
            found = read_json(self._side_file)
            self._side = found if found and found["attempt"] == self._attempt else None
        return self._side

    @property
    def beat(self) -> Beat | None:
        """The heartbeat of this very process."""
        beat = read_beat(self._beat_file)
        return beat if beat and self.side and beat.pid == self.side["pid"] else None

    @property
    def begun(self) -> bool:
        """Whether this process has ended its first step: a line follows the last header of its step log."""
        if not self._begun:
            try:
                lines = self._step_log.read_text(encoding="utf-8").splitlines()
            except OSError:
                return False
            self._begun = bool(lines) and '"schema"' not in lines[-1]
        return self._begun

    @property
    def process(self) -> str | None:
        """What keeps the process from running at all, if anything does: "stopped", or "in the kernel" (storage)."""
        return HELD.get(state_of(self.side["pid"])) if self.side else None

    @property
    def gone(self) -> bool:
        """Registered once, no process any more."""
        return self.side is not None and not is_running(self.side["pid"])

    @property
    def finished(self) -> bool:
        """Came to a clean end."""
        beat = self.beat
        return beat is not None and beat.phase == DONE

    @property
    def messages(self) -> bytes:
        """Its counts of sends and receives, without the rows that are not in use."""
        try:
            return self._message_file.read_bytes().rstrip(b"\0")
        except OSError:
            return b""

    def ask(self, handler: str, timeout: float) -> bytes:
        """Call a handler of the rank. Raises OSError."""
        assert self.side is not None
        return post(self.side["server"], handler, timeout)

    def signal_stacks(self, timeout: float) -> bytes:
        """Stacks by faulthandler's signal, which needs no GIL but interrupts a sleeping rank; empty if none came."""
        assert self.side is not None
        before = self._signal_file.stat().st_size
        os.kill(self.side["pid"], signal.SIGUSR2)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            time.sleep(0.1)
            written = self._signal_file.read_bytes()[before:]
            if written.endswith(b"\n") and self._signal_file.stat().st_size == before + len(written):
                return written
        return b""
