"""Send what is new in a node's run folder to the receiver, repeatedly, until the job has ended.

If the receiver cannot be reached, the sender tries again; parts that have arrived are not sent twice. The sender also
reports to the receiver that the node's collector has begun to take dumps. If another node has reported dumps, the
sender lets its own collector take some too.
"""

import secrets
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from analyzers.errors import InputError
from analyzers.files import read_json, read_whole
from analyzers.nodes.received import read_node_list
from analyzers.writing import write_whole
from workbench.collect.link import Link, Rejected, Unreachable
from workbench.collect.node_dumps import last_incident, request_dumps
from workbench.collect.outgoing import Outgoing, State
from workbench.collect.parcel import FULL_BYTES, FULL_PARTS, Incident, Parcel, Part, Reply
from workbench.console import note

LOOK_S = 0.25
"""The seconds between two checks of whether the node's collector takes dumps."""
RETRY_S, LONGEST_RETRY_S = 1.0, 15.0
LONGEST_PAUSE_S = 60.0
QUIET_S = 5.0
"""The seconds without a changed file after which a job whose end is recorded has ended.

Launchers still write after their ranks have ended.
"""
LAST_TRIES_S = 60.0
"""The seconds for which a sender that was told to end still tries to reach the receiver."""
ENDED = ("completed", "failed", "interrupted")


class Sender:
    """Sends the files of the run folder `folder` under the name `node`."""

    def __init__(self, folder: Path, link: Link, node: str) -> None:
        self._folder, self._link, self._node = folder, link, node
        self._outgoing = Outgoing(folder)
        self._session = session_of(folder, node)
        # Larger than those of an earlier sender of this session.
        self._number = time.time_ns()
        self._home = ""
        self._at_home = False
        self._pause_s = RETRY_S
        self._incident: Incident | None = None
        self._asked: Incident | None = None
        self._said: set[str] = set()

    def run(self, is_over: Callable[[], bool]) -> None:
        """Send what is new until `is_over` returns True, and then send the rest.

        Raises:
            InputError: The receiver does not accept this sender, or cannot be reached at the end.
        """
        failures, give_up_at = 0, float("inf")
        while True:
            ends = is_over()
            if ends:
                give_up_at = min(give_up_at, time.monotonic() + LAST_TRIES_S)
            try:
                self.send_all(ended=ends)
            except Unreachable as error:
                failures += 1
                self._say(f"{self._link.url} cannot be reached ({error}); trying again")
                if time.monotonic() > give_up_at:
                    raise self._given_up(error) from error
            else:
                if ends:
                    return
                failures = 0
            pause_s = min(RETRY_S * 2.0 ** min(failures, 8), LONGEST_RETRY_S) if failures else self._pause_s
            self._wait(pause_s, is_over)

    def send_all(self, *, ended: bool) -> None:
        """Send everything that is new now; `ended` says that nothing will follow.

        Raises:
            Unreachable: The receiver does not answer.
            InputError: The receiver does not accept this sender.
        """
        try:
            while self._send_some():
                pass
            if ended:
                self._exchange([], ended=True)
        except Rejected as error:
            hint = "give the same --token-file, or WORKBENCH_TOKEN, to the receiver and to all nodes"
            raise InputError(f"{self._link.url} does not accept this node: {error}", hint) from error
        for path, reason in self._outgoing.refused().items():
            self._say(f"{path} was not accepted: {reason}")

    def _send_some(self) -> bool:
        """Send one parcel, which may be empty, and return whether there is more to send."""
        outgoing = self._outgoing
        # Nothing before the first answer, which says whether both share a disk.
        parts = next_parcel(outgoing) if self._home and not self._at_home else []
        reply = self._exchange([part for part, _ in parts], ended=False)
        # The reply came from another folder than before, where everything must be sent again.
        if self._outgoing is not outgoing:
            return True
        has_rest = is_full([part for part, _ in parts])
        for (part, state), result in zip(parts, reply.results, strict=True):
            has_rest = outgoing.note(part, state, result) or has_rest
        return has_rest

    def _exchange(self, parts: list[Part], *, ended: bool) -> Reply:
        """Send a parcel and return the reply; if the reply asks for dumps, request them from the node's collector.

        Raises:
            Unreachable: There is no reply.
            Rejected: The receiver does not accept the parcel.
        """
        self._number += 1
        self._incident = last_incident(self._folder / "dumps")
        host = socket.gethostname()
        parcel = Parcel(self._node, self._session, self._number, host, ended, self._at_home, self._incident, parts)
        try:
            reply = msgspec.msgpack.decode(self._link.post(msgspec.msgpack.encode(parcel)), type=Reply)
        except msgspec.DecodeError as error:
            raise Unreachable(str(error)) from error
        if reply.number != self._number or len(reply.results) != len(parts):
            raise Unreachable("the answer to another message")
        self._pause_s = min(max(reply.next_s, RETRY_S), LONGEST_PAUSE_S)
        if reply.home != self._home:
            # Nothing of what was sent is in another folder.
            self._home, self._outgoing = reply.home, Outgoing(self._folder)
            here = read_node_list(self._folder)
            self._at_home = here is not None and here.home == reply.home
        if reply.ask and reply.ask != self._asked and request_dumps(self._folder / "dumps", reply.ask):
            self._asked = reply.ask
        return reply

    def _given_up(self, error: Unreachable) -> InputError:
        message = f"{self._link.url} cannot be reached ({error}): not all files of {self._folder} were sent"
        return InputError(message, f"send the rest later: workbench collect {self._folder} --to {self._link.url}")

    def _say(self, text: str) -> None:
        """Print a note; the same text is printed only once."""
        if text not in self._said:
            self._said.add(text)
            note(f"collect: {text}")

    def _wait(self, seconds: float, is_over: Callable[[], bool]) -> None:
        """Wait until the next parcel is due, the collector begins to take dumps, or the job is over."""
        deadline, before = time.monotonic() + seconds, is_over()
        while time.monotonic() < deadline and is_over() == before:
            time.sleep(LOOK_S)
            if last_incident(self._folder / "dumps") != self._incident:
                return


def next_parcel(outgoing: Outgoing) -> list[tuple[Part, State]]:
    """Return the next parts to send, as many as fit into one parcel."""
    parts: list[tuple[Part, State]] = []
    for part, state in outgoing.parts():
        parts.append((part, state))
        if is_full([part for part, _ in parts]):
            break
    return parts


def is_full(parts: Sequence[Part]) -> bool:
    """Return whether a parcel with these parts is full."""
    return len(parts) >= FULL_PARTS or sum(len(part.data) for part in parts) >= FULL_BYTES


def session_of(folder: Path, node: str) -> str:
    """Return the random name of this node's run in a folder; it is stored there, for a sender that is started again."""
    path = folder / f".collect_{node}"
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
    return status in ENDED and time.time() - changed > QUIET_S
