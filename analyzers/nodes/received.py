"""Read the list of nodes that sent their files to a run folder; the receiver of `workbench collect` writes this list.

The files of a node are in `nodes/<node>/` below the folder, arranged as in a run folder.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from analyzers.files import read_json

NODES, LIST = "nodes", "received.json"
SCHEMA = "workbench.nodes/1"
ENDED_WELL = ("running", "completed", "interrupted", "failed")
"""The states of a run from best to worst; the whole run has the worst state of any node."""


class Node(msgspec.Struct):
    """A node that has sent files: its host, the times of its first and last message (Unix ns), and what it sent.

    `ended`: its job has ended, and all of its files arrived. `refused` has files that were not accepted, with the
    reason. The files of a node `at_home` are in the run folder itself. `session` is a random name of the node's own run
    folder, by which a restarted sender is recognised.
    """

    session: str = ""
    host: str = ""
    first_ns: int = 0
    last_ns: int = 0
    ended: bool = False
    at_home: bool = False
    files: int = 0
    bytes: int = 0
    refused: dict[str, str] = {}


class NodeList(msgspec.Struct):
    """The content of `nodes/received.json`: the nodes by name, and how many were `expected` (0: unknown).

    `home` is a random id of the folder; `closed_ns` is when the receiver ended (0: it runs, or was killed).
    """

    schema: str = SCHEMA
    home: str = ""
    expected: int = 0
    started_ns: int = 0
    closed_ns: int = 0
    nodes: dict[str, Node] = {}


def node_of(path: Path, root: Path) -> str | None:
    """Return the name of the node that sent the file `path` to the run folder `root`; None if the file was not sent."""
    parts = path.relative_to(root).parts if path.is_relative_to(root) else ()
    return parts[1] if len(parts) > 2 and parts[0] == NODES else None


def read_node_list(folder: Path) -> NodeList | None:
    """Return the list of nodes whose files are in a run folder; None if there is none, or it is damaged."""
    try:
        return msgspec.convert(read_json(folder / NODES / LIST), NodeList)
    except (OSError, ValueError, msgspec.ValidationError):
        return None


def merged_manifest(own: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the manifest (run.json) of a run, merged from the manifests of its launchers.

    `own` is the manifest in the run folder, `others` are the manifests that nodes sent. Exit codes and launches of all
    nodes are combined, and the cause is the earliest one. The job failed if it failed on any node. Other fields are
    taken from `own`, then from the first of `others` that has them.
    """
    every = [manifest for manifest in (own, *others) if manifest]
    merged: dict[str, Any] = {}
    # Backwards, so that the first manifest with a field has the last word.
    for manifest in reversed(every):
        merged |= manifest
    for name in ("exit_codes", "launches"):
        parts = [part for manifest in every if isinstance(part := manifest.get(name), dict)]
        if parts:
            merged[name] = {key: value for part in parts for key, value in part.items()}
    causes = [
        cause for m in every if isinstance(cause := m.get("cause"), dict) and isinstance(cause.get("time_ns"), int)
    ]
    if causes:
        merged["cause"] = min(causes, key=lambda cause: int(cause["time_ns"]))
    states = [state for manifest in every if (state := manifest.get("status")) in ENDED_WELL]
    if states:
        merged["status"] = max(states, key=ENDED_WELL.index)
    return merged
