"""Receive parcels from the senders of all nodes, keep the list of nodes, and tell all nodes when one takes dumps."""

import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from analyzers.nodes.received import LIST, NODES, Node, NodeList, read_node_list
from analyzers.writing import replacing
from workbench.collect.artefact_names import is_plain
from workbench.collect.node_folder import NodeFolder
from workbench.collect.parcel import Incident, Parcel, Reply, Result

MOST_NODES = 4096
ONE_INCIDENT_S = 15.0
"""Sets of dumps that nodes begin within this many seconds belong to one incident: it asks each node only once."""
NODES_PER_S = 200
"""The most parcels per second that the receiver expects; if there are more nodes, it tells them to send less often."""
LIST_S = 1.0
"""The shortest time in seconds between two writes of the list of nodes, unless a node appears or ends."""
MOST_REFUSALS = 20


class Refusal(Exception):
    """Raised for a parcel that is not accepted; the message says why."""


class Receiver:
    """Writes what nodes send to `folder/nodes/`; `expected` is the number of nodes that should send, 0 if unknown."""

    def __init__(self, folder: Path, expected: int, clock: Callable[[], int] = time.time_ns) -> None:
        self._nodes_folder = folder / NODES
        self._nodes_folder.mkdir(parents=True, exist_ok=True)
        self._clock = clock
        self._lock = threading.Lock()
        known = read_node_list(folder)
        self._list = known or NodeList(home=secrets.token_hex(16), expected=expected, started_ns=clock())
        self._list.expected, self._list.closed_ns = expected or self._list.expected, 0
        self._folders: dict[str, NodeFolder] = {}
        self._numbers: dict[str, int] = {}
        self._asked: tuple[str, Incident] | None = None
        self._asked_ns = 0
        self._started_ns = clock()
        self._announced: dict[str, int] = {}
        self._written = 0.0
        self._write()

    def take(self, parcel: Parcel) -> Reply:
        """Write the parts of a parcel, and return the reply to the parcel.

        Raises:
            Refusal: The parcel is an old one that was sent again, or there are too many nodes.
        """
        with self._lock:
            name = self._name_of(parcel)
            if parcel.number <= self._numbers.get(parcel.session, 0):
                raise Refusal("this parcel came before")
            self._numbers[parcel.session] = parcel.number
            folder = self._folder(name)
        # Of each node one at a time: a connection that the sender gave up must not write the same file. Nodes do not
        # wait for each other, because a disk takes long to say that a file is safe.
        with folder.lock:
            results = [folder.add(part) for part in parcel.parts]
        with self._lock:
            self._note_parcel(name, parcel, results, folder)
            next_s = max(1.0, len(self._list.nodes) / NODES_PER_S)
            return Reply(parcel.number, self._list.home, next_s, self._ask(name), results)

    def _note_parcel(self, name: str, parcel: Parcel, results: list[Result], folder: NodeFolder) -> None:
        """Update the list of nodes after a parcel."""
        node = self._list.nodes[name]
        for part, result in zip(parcel.parts, results, strict=True):
            if result.refused and len(node.refused) < MOST_REFUSALS:
                node.refused[part.path[:200]] = result.refused
        has_ended = parcel.ended and not node.ended
        node.last_ns, node.ended, node.at_home = self._clock(), parcel.ended, parcel.at_home
        node.files, node.bytes = folder.files, folder.bytes
        self._note_incident(name, parcel.incident)
        if has_ended or time.monotonic() - self._written > LIST_S:
            self._write()

    def close(self) -> None:
        """Write the list of nodes, and record that the receiver has ended."""
        with self._lock:
            self._list.closed_ns = self._clock()
            self._write()

    def silent_s(self) -> float:
        """Return the number of seconds since any node has last sent something."""
        with self._lock:
            last_ns = max((node.last_ns for node in self._list.nodes.values()), default=self._started_ns)
            return (self._clock() - last_ns) / 1e9

    def _name_of(self, parcel: Parcel) -> str:
        """Return the name of the node that sent a parcel; each run folder gets a different name."""
        for name, node in self._list.nodes.items():
            if node.session == parcel.session:
                return name
        if len(self._list.nodes) >= MOST_NODES:
            raise Refusal(f"there are {MOST_NODES} nodes already")
        if not is_plain(parcel.node) or "/" in parcel.node:
            raise Refusal("not the name of a node")
        name, copy = parcel.node, 2
        while name in self._list.nodes:
            name, copy = f"{parcel.node}.{copy}", copy + 1
        now = self._clock()
        self._list.nodes[name] = Node(session=parcel.session, host=parcel.host[:255], first_ns=now, last_ns=now)
        self._written = 0.0
        return name

    def _folder(self, name: str) -> NodeFolder:
        if name not in self._folders:
            folder = self._nodes_folder / name
            folder.mkdir(exist_ok=True)
            self._folders[name] = NodeFolder(folder)
        return self._folders[name]

    def _note_incident(self, name: str, incident: Incident | None) -> None:
        """Store an incident for the other nodes, except if another node has reported one shortly before.

        The time of arrival counts, because the clocks of the nodes differ.
        """
        if incident is None or self._announced.get(name) == incident.asked_ns:
            return
        self._announced[name] = incident.asked_ns
        now = self._clock()
        if self._asked is None or now > self._asked_ns + ONE_INCIDENT_S * 1e9:
            self._asked, self._asked_ns = (name, incident), now

    def _ask(self, name: str) -> Incident | None:
        """Return the incident for which a node shall take dumps: the last one, unless the node itself reported it."""
        return None if self._asked is None or self._asked[0] == name else self._asked[1]

    def _write(self) -> None:
        with replacing(self._nodes_folder / LIST) as file:
            file.write(msgspec.json.format(msgspec.json.encode(self._list), indent=1))
        self._written = time.monotonic()
