"""Read artefacts in forks of a small server process, for a process that must not fork because it has several threads.

Starting a Python interpreter and importing a reader takes a few hundred milliseconds of processor time; reading a small
file takes only a few. The server is one interpreter that imports each reader once. It has no second thread, so it can
fork for each file: first a *handler*, which then runs the task in a fork of itself (`child.run_forked`).

For each task the client (the process that started the server) makes a pair of connected sockets. It sends one of them
to the server, with the name of the reader. The handler gets the task through this pair, and sends back how the child
ended. The server ends as soon as the client has ended, in whatever way, because no other process holds the other end of
its control socket.
"""

import atexit
import contextlib
import gc
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import NoReturn

import msgspec

from analyzers.child import (
    KILLS,
    SERVER_KILLED,
    TIMED_OUT,
    ChildExit,
    Task,
    end_with_parent,
    interpreter,
    is_readable,
    prepare,
    run_forked,
)

_LONGEST_NAME = 4096
_GRACE_S = 30
"""The seconds after the time limit of a task that the client still waits for the handler to report its end."""


class ReaderServer:
    """A running server process, as seen by the process that started it (the client)."""

    def __init__(self) -> None:
        # Packets, not a stream: each request arrives as a whole, together with the socket that it carries.
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command, environment = interpreter("analyzers.reader_server")
            self.process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
            )

    def run(self, task: Task) -> ChildExit:
        """Run a task in a fork of the server, and return how the fork ended.

        Raises:
            OSError: The server process has ended.
        """
        here, there = socket.socketpair()
        with here:
            with there:
                socket.send_fds(self.control, [task.reader.encode()], [there.fileno()])
            return _answer_of_handler(here, task)

    def has_ended(self) -> bool:
        """Return whether the server has been stopped, or has ended and so closed its end of the control socket.

        This shows even before the process is dead: the processes that read are killed a moment later.
        """
        if self.control.fileno() < 0:
            return True
        waiting = select.poll()
        waiting.register(self.control, 0)  # a closed end is reported whatever one waits for
        return bool(waiting.poll(0))

    def stop(self) -> None:
        self.control.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _answer_of_handler(connection: socket.socket, task: Task) -> ChildExit:
    """Send a task to its handler, and return how the handler's child, which reads the files, ended.

    A handler is a fork of the server for one request; `connection` is the socket to it. If the handler ends without an
    answer, its child counts as killed. If it is silent for longer than the task may take, the result is `TIMED_OUT`.
    """
    with contextlib.suppress(BrokenPipeError):  # killed before it had read the task
        connection.sendall(encode(task))
        # The handler reads until the end, so it waits for this.
        connection.shutdown(socket.SHUT_WR)
    if not is_readable(connection, task.wall_s + _GRACE_S):
        return ChildExit(TIMED_OUT, b"")
    answer = _read_to_end(connection)
    if not answer:
        return ChildExit(-signal.SIGKILL, b"")
    status, _, message = answer.partition(b"\n")
    return ChildExit(int(status), message)


def _read_to_end(connection: socket.socket) -> bytes:
    """Return all bytes that arrive at a socket until its other end is closed."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def encode(task: Task) -> bytes:
    """Return a task as JSON, with paths as hexadecimal bytes, because a path need not be valid text."""
    paths = [os.fsencode(path.absolute()).hex() for path in (task.target, *task.paths)]
    return msgspec.json.encode([task.reader, paths, task.memory, task.seconds])


def decode(request: bytes) -> Task:
    reader, names, memory, seconds = msgspec.json.decode(request)
    target, *paths = (Path(os.fsdecode(bytes.fromhex(name))) for name in names)
    return Task(reader, target, paths, memory, seconds)


ATTEMPTS = 2
"""The number of servers to which a task is sent in turn if it could not be sent to the first."""
STARTED: list[ReaderServer] = []
_LOCK = threading.Lock()


def run_by_server(task: Task) -> ChildExit:
    """Run a task in a fork of this process's server, and return how the fork ended; the server is started if needed."""
    for _ in range(ATTEMPTS):
        server = running_server()
        try:
            ended = server.run(task)
        except OSError:  # somebody has killed the server since the last task
            _discard_if_ended(server)
            continue
        if ended.status in KILLS and _discard_if_ended(server):
            break  # its reader may write to the folder of the task for one more moment
        return ended
    return ChildExit(SERVER_KILLED, b"")


def _discard_if_ended(server: ReaderServer) -> bool:
    """Return whether a server has ended; in this case, forget it, so that the next task starts another one."""
    with _LOCK:
        ended = server.has_ended()
        # Another thread may have replaced this server already.
        if ended and [server] == STARTED:
            STARTED.clear()
            server.stop()
    return ended


def running_server() -> ReaderServer:
    with _LOCK:
        if not STARTED:
            STARTED.append(ReaderServer())
            atexit.register(STARTED[0].stop)
        return STARTED[0]


def main(control: socket.socket) -> None:
    """Run the server: fork a handler process for each request that comes from the socket `control`, until that closes.

    A request has the name of a reader module, and a socket for the task and the answer.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the children that read
    # The limits of an analysis that runs in the client at this moment are not for the readers.
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    while True:
        reader, descriptors, *_ = socket.recv_fds(control, _LONGEST_NAME, 1)
        _collect_handlers()
        if not reader:
            return
        with socket.socket(fileno=descriptors[0]) as connection:
            prepare(reader.decode())
            gc.freeze()  # the collector of a fork would otherwise touch, and so copy, the pages of all modules
            if not os.fork():
                control.close()
                handle(connection)


def _collect_handlers() -> None:
    """Wait for the handler processes that have ended, so that their processor time counts for this process.

    With SIGCHLD ignored the system would also remove them, but their time would be lost.
    """
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def handle(connection: socket.socket) -> NoReturn:
    """Run the task of one request in a fork of this handler process, send how the fork ended, and exit.

    The task is read from `connection`, and the answer is written to it.
    """
    try:
        end_with_parent()
        ended = run_forked(decode(_read_to_end(connection)))
        connection.sendall(b"%d\n%s" % (ended.status, ended.message))
    finally:
        os._exit(0)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
