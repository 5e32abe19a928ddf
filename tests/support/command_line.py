"""Run `workbench` commands in forks of one warm interpreter: each is a process of its own, without the start-up.

Starting Python and importing a command's modules costs up to a second of processor time, many times what the commands
of most tests do. Tests of the start itself, of the environment, or of signals start `python -m workbench` instead.

    ended = command_line.run("inspect", folder, "--json")

This file is also the program of the warm interpreter (`serve`). It has no thread and waits for requests; for each it
forks a handler, which forks the command, waits for it and sends its exit status.
"""

import atexit
import contextlib
import functools
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

STREAMS = 3


def run(*arguments, cwd=None, env=None, timeout=240):
    """Run `workbench ARGUMENTS...` in the folder `cwd` and return it like `subprocess.run`, with text."""
    words = [os.fspath(word) if isinstance(word, os.PathLike) else str(word) for word in arguments]
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        Path(os.devnull).open("rb") as nothing,
        contextlib.ExitStack() as sockets,
    ):
        here, there = map(sockets.enter_context, socket.socketpair())
        socket.send_fds(server(), [b"x"], [there.fileno(), nothing.fileno(), out.fileno(), err.fileno()])
        there.close()
        here.sendall(json.dumps([words, str(cwd or Path.cwd()), dict(env or os.environ)]).encode())
        here.shutdown(socket.SHUT_WR)
        if not select.select([here], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(words, timeout)
        status = int(here.recv(100))
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(words, status, out.read().decode(), err.read().decode())


@functools.cache
def server():
    """Start the warm interpreter and return the socket of its requests; it ends with the last test."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, __file__, str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE)

    def end():
        ours.close()
        process.stdout.close()
        process.wait()

    atexit.register(end)
    return ours


def import_all():
    """Import what the commands import only when they are used; the trainer runs in a process of its own."""
    for name in ("analyzers", "workbench.commands", "workbench.present", "pandas", "plotly.graph_objects"):
        module = importlib.import_module(name)
        if name.startswith(("analyzers", "workbench")):
            for found in pkgutil.walk_packages(module.__path__, f"{name}."):
                importlib.import_module(found.name)


def serve(control):
    """Return, in a fork, the words of each command that is to be run; leave at the end of the requests."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        asked, descriptors, *_ = socket.recv_fds(control, 1, 1 + STREAMS)
        if not asked:
            os._exit(0)
        if not os.fork():
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return handle(descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def handle(descriptors):
    """Fork the command and send its exit status; in the fork, return its words."""
    connection, *streams = descriptors
    request = b""
    while part := os.read(connection, 1 << 16):
        request += part
    words, folder, environment = json.loads(request)
    if command := os.fork():
        _, status = os.waitpid(command, 0)
        os.write(connection, str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    os.close(connection)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    return words


if __name__ == "__main__":
    del sys.path[0]  # the tests' own folder
    import_all()
    sys.argv[1:] = serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module("workbench", run_name="__main__", alter_sys=True)
