"""Collect the files of all nodes of a running job in one folder: each node runs a sender, and one node a receiver."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from analyzers.nodes.received import NODES, NodeList, read_node_list
from workbench.collect.addresses import Address, parse_address
from workbench.collect.running import DONE
from workbench.collect.token import VARIABLE, read_token
from workbench.console import note
from workbench.launch.earlier_run import set_aside_earlier_run, start_stamp
from workbench.launch.plan import Plan, Request
from workbench.launch.run_manifest import read_manifest
from workbench.python_path import command, environment

LISTENING_S = 10.0
"""The seconds within which a receiver must begin to listen."""
SILENT_S = 15.0
"""The seconds of silence after which a node is not waited for at the end of the job."""
WAIT_S = 60.0
"""The seconds for which the launcher of the home folder waits for the files of other nodes at the end of the job."""
SENDER_S = 90.0
LOOK_S = 0.5
ENDED = ("completed", "failed", "interrupted")
OF_THE_TRAINER = ("tb", "values", "not_finite")
Process = subprocess.Popen[bytes]


class Collection:
    """The processes that collect a job's files while it runs: this node's sender, and on the home node the receiver.

    The home node is the node whose run folder gets the files of all nodes.
    """

    def __init__(self, folder: Path, sender: Process, receiver: Process | None) -> None:
        self._folder, self._sender, self._receiver = folder, sender, receiver

    def finish(self) -> None:
        """Send the remaining files of this node; on the home node, also wait for the files of the other nodes."""
        end(self._sender, SENDER_S)
        if self._receiver:
            wait_for_nodes(self._folder)
            end(self._receiver, LISTENING_S)


def address_of(request: Request) -> Address | None:
    """Return the address to which the nodes send their files (option `--collect`); None if files are not collected.

    Raises:
        UsageProblem: The address is wrong.
    """
    if request.collect is None:
        return None
    return parse_address(request.collect, request.rdzv_endpoint.rpartition(":")[0])


@contextlib.contextmanager
def collecting(job: Plan) -> Iterator[Collection | None]:
    """Yield the `Collection` of a job that starts now; None if the files of its nodes are not collected.

    Inside this context, the collection token is removed from the environment, so that the ranks do not get it.

    Raises:
        WorkbenchError: The address is wrong, or there is no token.
    """
    address = address_of(job.request)
    if address is None:
        yield None
        return
    token = read_token(job.request.token_file)
    # The ranks need no token.
    before = os.environ.pop(VARIABLE, None)
    try:
        yield started(job, address, token)
    finally:
        if before is not None:
            os.environ[VARIABLE] = before


def started(job: Plan, address: Address, token: bytes) -> Collection:
    """Start the sender of this node, and the receiver if `address` is on this machine and still free.

    Sender and receiver prove with `token` that they belong to the same job. First the files of an earlier run are moved
    away; our trainer itself does this only on the node of rank 0.
    """
    folder, receiver = job.folder, None
    if job.earlier_files is None and read_manifest(folder / "run.json").get("status") in ENDED:
        set_aside_earlier_run(folder, OF_THE_TRAINER)
    if address.is_free_here():
        set_aside_nodes(folder)
        receiver = beside(token, "listen", str(folder), address.url, str(job.request.nnodes))
        wait_until_listening(address)
    return Collection(folder, beside(token, "send", str(folder), address.url), receiver)


def set_aside_nodes(folder: Path) -> None:
    """Move the files that nodes sent to `folder` in an earlier run to the subfolder `previous/`."""
    nodes = read_node_list(folder)
    if nodes:
        target = folder / "previous" / start_stamp({"started_ns": nodes.started_ns}) / NODES
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(folder / NODES, target)


def beside(token: bytes, mode: str, *arguments: str) -> Process:
    """Start a receiver (`mode` is `listen`) or a sender (`send`) as a process; `arguments` go to its command line.

    The token is passed in the environment of the process, which only the same user can read.
    """
    return subprocess.Popen(
        command("workbench.collect.running", mode, *arguments),
        env=environment() | {VARIABLE: token.decode()},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C at the launcher must not end it before the last files are sent
    )


def wait_until_listening(address: Address) -> None:
    """Wait until the receiver at `address` accepts connections, at most `LISTENING_S` seconds."""
    deadline = time.monotonic() + LISTENING_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((address.host, address.port), 1.0):
            return
        time.sleep(LOOK_S / 5)


def wait_for_nodes(folder: Path) -> None:
    """Wait until each node has sent all of its files to `folder` or has gone silent, at most `WAIT_S` seconds."""
    deadline, is_said = time.monotonic() + WAIT_S, False
    while (late := late_nodes(read_node_list(folder))) and time.monotonic() < deadline:
        if not is_said:
            note(f"waiting for the files of {', '.join(late)}")
            is_said = True
        time.sleep(LOOK_S)


def late_nodes(nodes: NodeList | None) -> list[str]:
    """Return the names of the nodes that have recently sent something, but not yet all of their files."""
    known = nodes.nodes if nodes else {}
    recent_ns = time.time_ns() - int(SILENT_S * 1e9)
    return [name for name, node in known.items() if not node.ended and node.last_ns > recent_ns]


def end(process: Process, patience_s: float) -> None:
    """Ask a sender or receiver on its stdin to end, and wait until it has; kill it after `patience_s` seconds."""
    try:
        process.communicate(DONE, patience_s)
    except (OSError, subprocess.TimeoutExpired):
        process.kill()
        process.wait()
