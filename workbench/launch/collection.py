"""Bring the files of all nodes of a running job together: beside each launcher runs a sender, which writes to a URL."""

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from analyzers.errors import WorkbenchError
from analyzers.run import NODE_FILE, NODES, Node
from analyzers.words import quantity
from workbench.collect import DONE, ENDED, URL, Store
from workbench.console import note
from workbench.launch.plan import Plan
from workbench.launch.run_manifest import read_manifest, set_aside_earlier_run
from workbench.python_path import command, environment
from workbench.remote.local_paths import local_path
from workbench.remote.urls import without_credentials

WAIT_S = 60.0
"""The seconds for which the launcher of rank 0 waits for the files of other nodes at the end of the job."""
_SENDER_S = 90.0
_OF_THE_TRAINER = ("tb", "values", "not_finite")
"""Folders that our trainer writes beside those of every job."""
_LOOK_S = 1.0


class Collection:
    """The files of a job's nodes at the URL of `--collect`, and the process that writes those of this node there."""

    def __init__(self, job: Plan, url: str) -> None:
        self.url, self._job = url, job
        # An error of the URL is one of the launch, before the job starts.
        self._store = Store(url)
        self._sender: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start to write this node's files; those of an earlier run must have been moved away."""
        job = self._job
        # Our trainer moves them itself, but only on the node of rank 0, and after this.
        if job.earlier_files is None and read_manifest(job.folder / "run.json").get("status") in ENDED:
            set_aside_earlier_run(job.folder, _OF_THE_TRAINER)
        self._sender = subprocess.Popen(
            command("workbench.collect", str(job.folder), str(job.request.nnodes)),
            env=environment() | {URL: self.url},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C at the launcher must not end it before the last files are written
        )

    def finish(self) -> None:
        """Write the remaining files of this node, and end the process that does so."""
        if self._sender is None or self._sender.poll() is not None:
            return
        try:
            self._sender.communicate(DONE, _SENDER_S)
        except (OSError, subprocess.TimeoutExpired):
            self._sender.kill()
            self._sender.wait()

    def of_all_nodes(self) -> Path:
        """Return a local folder with the files of all nodes, after all have written theirs, or `WAIT_S` seconds.

        Raises:
            WorkbenchError: The URL cannot be read.
        """
        deadline, is_said = time.monotonic() + WAIT_S, False
        while (late := self._late()) and time.monotonic() < deadline:
            if not is_said:
                note(f"waiting for the files of {late}")
                is_said = True
            time.sleep(_LOOK_S)
        return local_path(self.url)

    def _late(self) -> str:
        """Return the nodes that have not yet written all of their files as text; empty if there is none."""
        nodes: dict[str, Node] = self._store.read(NODES, Node, NODE_FILE)
        late = [name for name, node in nodes.items() if not node.ended]
        if not late and len(nodes) < self._job.request.nnodes:
            return quantity(self._job.request.nnodes - len(nodes), "more node")
        return ", ".join(late)


@contextlib.contextmanager
def collecting(job: Plan) -> Iterator[Collection | None]:
    """Yield the `Collection` of a job that starts now; None without `--collect`.

    Raises:
        WorkbenchError: The URL cannot be used.
    """
    collection = Collection(job, job.request.collect) if job.request.collect else None
    try:
        yield collection
    finally:
        if collection:
            collection.finish()


def folder_to_explain(job: Plan, collection: Collection | None, first_rank: int | None) -> Path:
    """Return the folder whose files explain a failed job.

    On the node of rank 0 it has the files of all nodes. `first_rank` is the lowest rank of this node, None if unknown.
    """
    if collection is None:
        return job.folder
    note(f"the files of all nodes: workbench inspect {without_credentials(collection.url)}")
    if first_rank:
        return job.folder
    try:
        return collection.of_all_nodes()
    except WorkbenchError as error:
        note(f"{error.message}: this is the answer of this node alone")
        return job.folder
