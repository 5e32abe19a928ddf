"""Implement `workbench collect`: write the files of this node to the URL where those of all nodes come together."""

from pathlib import Path

from analyzers.errors import Exit
from workbench.collect.beside import signals_remembered
from workbench.collect.sender import Sender, has_ended, node_name
from workbench.console import note
from workbench.remote.urls import without_credentials


def collect(folder: Path, to: str, nodes: int) -> Exit:
    """Write the files of `folder` to the URL `to` until its job has ended or a signal comes; then write the rest.

    `nodes` is the number of nodes that will do so; 0 if unknown.

    Raises:
        WorkbenchError: The URL cannot be written to, or has the files of an earlier job.
    """
    node, place = node_name(), without_credentials(to)
    with signals_remembered() as is_told_to_end:
        sender = Sender(folder, to, node, nodes)
        note(f"writing {folder} to {place} as node {node}")
        sender.run(lambda: is_told_to_end() or has_ended(folder))
    note(f"all files of {folder} are at {place}; the answer of all nodes: workbench inspect {place}")
    return Exit.OK
