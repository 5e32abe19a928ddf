"""Observe a rank from outside: whether its process runs, its heartbeat, and its answers to HTTP requests.

This module uses only the standard library, because it runs in the collector, a process outside of the ranks.
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

BLOCKED_STATES = {"T": "stopped", "t": "stopped", "D": "in the kernel"}


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection over a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the Unix socket of the rank."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def post(server: str, handler: str, timeout: float) -> bytes:
    """Send an HTTP POST to `/handler/<handler>` of a rank's worker server, and return the body of the response.

    PyTorch runs this HTTP server in each rank. `server` is the path of a Unix socket, or host:port; `timeout` is in
    seconds.

    Raises:
        OSError: The server does not answer in time.
    """
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
    """Return whether a process exists and is not a zombie."""
    if not Path("/proc/self").exists():
        return accepts_signals(pid)
    return process_state(pid) not in ("", "Z", "X")


def process_state(pid: int) -> str:
    """Return Linux's letter for the state of a process, such as "S" for sleeping; empty if there is no such process."""
    try:
        # After the last parenthesis: the program's name is in parentheses, and may contain spaces and parentheses.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def accepts_signals(pid: int) -> bool:
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

    def __init__(self, folder: Path, rank: int, attempt: int) -> None:
        self.rank = rank
        self.holds_gil = False
        self._side_path = folder / "dumps" / f"groups_{rank}.json"
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
            content = read_json(self._side_path)
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
                lines = self._step_log.read_text(encoding="utf-8").splitlines()
            except OSError:
                return False
            self._finished_a_step = bool(lines) and '"schema"' not in lines[-1]
        return self._finished_a_step

    @property
    def blocked_by(self) -> str | None:
        """The reason why Linux does not let the process run, "stopped" or "in the kernel"; None if it can run.

        "in the kernel" usually means that the process waits for storage.
        """
        return BLOCKED_STATES.get(process_state(self.side_file["pid"])) if self.side_file else None

    @property
    def has_exited(self) -> bool:
        """Whether the rank's process has ended; False if the rank has not written its `groups_R.json` yet."""
        return self.side_file is not None and not is_running(self.side_file["pid"])

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
            return self._message_file.read_bytes().rstrip(b"\0")
        except OSError:
            return b""

    def ask(self, handler: str, timeout: float) -> bytes:
        """Return the response of the rank's HTTP server to a POST to `/handler/<handler>`.

        Raises:
            OSError: The server does not answer in `timeout` seconds.
        """
        assert self.side_file is not None
        return post(self.side_file["server"], handler, timeout)

    def signal_stacks(self, timeout: float, pid: int | None = None) -> bytes:
        """Send SIGUSR2 to a process, and return the stacks that faulthandler then writes; empty after the timeout.

        The process is the rank itself, or the process `pid`, which the rank has forked. `timeout` is in seconds.
        faulthandler does not need the GIL, but the signal interrupts a sleep.
        """
        assert self.side_file is not None
        # faulthandler appends to the file, which may have the stacks of earlier requests.
        before = self._signal_file.stat().st_size
        os.kill(pid or self.side_file["pid"], signal.SIGUSR2)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            time.sleep(0.1)
            written = self._signal_file.read_bytes()[before:]
            # faulthandler makes many small writes, so a file that still grows is not complete.
            if written.endswith(b"\n") and self._signal_file.stat().st_size == before + len(written):
                return written
        return b""
