"""Run a receiver or a sender in this process until it is told to end.

    python -P -m workbench.collect.running listen FOLDER URL NODES
    python -P -m workbench.collect.running send FOLDER URL

The launcher starts both of them for a job with these command lines. `WORKBENCH_TOKEN` has the token, and standard input
is a pipe. The launcher writes "done" into the pipe to end the process. If the pipe closes without "done", the launcher
was killed; then the process continues until the files have arrived.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from analyzers.errors import WorkbenchError
from workbench.collect.addresses import Address, parse_address
from workbench.collect.link import Link
from workbench.collect.receiver import Receiver
from workbench.collect.sender import Sender, has_ended
from workbench.collect.service import Service, listening
from workbench.collect.token import read_token
from workbench.console import complain

NODE = "WORKBENCH_NODE"
"""The environment variable with the name of this node, where host names are not unique."""
DONE = b"done"
ALONE_S = 60.0
"""The seconds without any message after which a receiver ends whose launcher was killed."""
ORPHANED_S = 120.0
"""The seconds after which a sender ends whose launcher was killed, even if nothing records the end of the job."""
LOOK_S = 1.0


def node_name() -> str:
    """Return the name of this node, under which it sends its files."""
    return os.environ.get(NODE) or socket.gethostname()


def receive(receiver: Receiver, address: Address, token: bytes, on_start: Callable[[], None] = lambda: None) -> None:
    """Receive files at an address until SIGTERM or Ctrl-C; `on_start` is called when the receiver listens.

    Raises:
        UsageProblem: The address does not belong to this machine, or the port is in use.
    """
    server = listening(address.host, address.port, Service(receiver, token))
    with signals_interrupt(), contextlib.suppress(KeyboardInterrupt):
        on_start()
        server.run()
    receiver.close()


def send(folder: Path, address: Address, token: bytes) -> None:
    """Send the files of `folder` until its job has ended or a signal comes; then send the remaining files.

    Raises:
        InputError: The receiver does not accept this node, or cannot be reached at the end.
    """
    with signals_remembered() as is_told_to_end:
        sender = Sender(folder, Link(address.url, token), node_name())
        sender.run(lambda: is_told_to_end() or has_ended(folder))


@contextlib.contextmanager
def signals_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGTERM inside this context, as for Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
        """Read standard input to its end."""
        self.is_done = sys.stdin.buffer.read() == DONE
        self._lost_at = None if self.is_done else time.monotonic()


def send_beside(launcher: Launcher, folder: Path, address: Address, token: bytes) -> None:
    """Send the files of `folder` until the launcher says that the job has ended.

    If the launcher was killed, send the files until the job itself has ended.
    """

    def is_over() -> bool:
        lost_s = launcher.lost_s
        return launcher.is_done or lost_s > ORPHANED_S or bool(lost_s and has_ended(folder))

    Sender(folder, Link(address.url, token), node_name()).run(is_over)


def receive_beside(launcher: Launcher, receiver: Receiver, address: Address, token: bytes) -> None:
    """Receive files until the launcher says that it needs no more.

    If the launcher was killed, receive files until no node sends any.
    """

    def watch() -> None:
        while not launcher.is_done and not (launcher.lost_s and receiver.silent_s() > ALONE_S):
            time.sleep(LOOK_S / 5)
        os.kill(os.getpid(), signal.SIGTERM)

    receive(receiver, address, token, threading.Thread(target=watch, daemon=True).start)


def main() -> None:
    """Run a receiver or a sender, as the command line says."""
    mode, folder, url, *nodes = sys.argv[1:]
    launcher, address = Launcher(), parse_address(url)
    try:
        if mode == "send":
            send_beside(launcher, Path(folder), address, read_token(None))
        else:
            receive_beside(launcher, Receiver(Path(folder), int(nodes[0])), address, read_token(None))
    except WorkbenchError as error:
        complain(error.message, error.hint)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
