"""Read which nodes wrote their files to a run folder, or to the URL of `launch --collect` that was copied here.

The files of a node are in `nodes/<node>/` below the folder, arranged as in a run folder, with a report of the node.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from analyzers.files import read_json

NODES, NODE_FILE = "nodes", "node.json"
_SCHEMA = "workbench.node/1"
_ENDED_WELL = ("running", "completed", "interrupted", "failed")
"""The states of a run from best to worst; the whole run has the worst state of any node."""


class Node(msgspec.Struct):
    """The content of `node.json`: a node that writes files, and the times (Unix ns) at which it first and last did so.

    `ended`: its job has ended, and all of its files are there. `session` is a random name of the node's own run folder,
    by which a restarted sender is recognised. `expected` is the number of nodes of the job (0: unknown).
    """

    schema: str = _SCHEMA
    session: str = ""
    host: str = ""
    first_ns: int = 0
    last_ns: int = 0
    ended: bool = False
    expected: int = 0
    files: int = 0
    bytes: int = 0


class NodeList(msgspec.Struct):
    """The nodes by name, and how many were `expected` (0: unknown)."""

    nodes: dict[str, Node]

    @property
    def expected(self) -> int:
        """The number of nodes of the job; 0 if unknown."""
        return max((node.expected for node in self.nodes.values()), default=0)


def node_of(path: Path, root: Path) -> str | None:
    """Return the name of the node that sent the file `path` to the run folder `root`; None if the file was not sent."""
    parts = path.relative_to(root).parts if path.is_relative_to(root) else ()
    return parts[1] if len(parts) > 2 and parts[0] == NODES else None


def read_node_list(folder: Path) -> NodeList | None:
    """Return the nodes whose files are in a run folder; None if there is none. Damaged reports are left out."""
    nodes: dict[str, Node] = {}
    for path in sorted((folder / NODES).glob(f"*/{NODE_FILE}")):
        try:
            nodes[path.parent.name] = msgspec.convert(read_json(path), Node)
        except (OSError, ValueError, msgspec.ValidationError):
            continue
    return NodeList(nodes) if nodes else None


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
    states = [state for manifest in every if (state := manifest.get("status")) in _ENDED_WELL]
    if states:
        merged["status"] = max(states, key=_ENDED_WELL.index)
    return merged
