"""Read what nodes said when dumps were taken: NCCL's RAS, errors of GPUs in the kernel's log, `nvidia-smi -q`.

RAS (reliability, availability, serviceability) is a thread of NCCL in each process. It lists the processes of the job
that no longer answer on its network, under the headings DEAD and INCOMPLETE:

    DEAD
      1 job process is considered dead (unreachable via the RAS network)
      Process 483075 on node 172.16.64.213 managing GPU 3
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from analyzers.files import read_whole
from analyzers.run import Kind, Run, node_of, read_node_list
from analyzers.words import quantity, rank_names

_HEALTH_BYTES = 8 << 20
DEAD, SILENT = "DEAD", "INCOMPLETE"
_HEADING = re.compile(r"(?:#\d+-\d+ \([0-9a-f]{1,16}\) )?(?P<state>[A-Z]{4,12})")
PROCESS = re.compile(r"\b[Pp]rocess (?P<pid>\d{1,9}) on node (?P<node>\S{1,255})")
XID = re.compile(r"NVRM: Xid \(PCI:(?P<pci>[0-9a-fA-F:.]{1,20})\): (?P<code>\d{1,4}),? ?(?P<rest>.{0,160})")
_LOST_GPU = re.compile(r"NVRM: .{0,40}GPU (?P<pci>[0-9a-fA-F:]{4,20}(?:\.\d)?)\b.{0,80}fallen off the bus")
GPU = re.compile(r"GPU (?P<pci>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]{4,12})\s*$")
_VALUE = re.compile(r"\s+(?P<name>[\w ]{3,60}?)\s*: (?P<value>.{1,80})$")
_MOST_FAULTS = 5
_HARMLESS_XIDS = {"45"}
"""The Xids that are no errors of their own: with them the driver cleans up after an earlier error."""


class Process(NamedTuple):
    pid: int
    host: str


@dataclass(frozen=True)
class Fault:
    """An error of a GPU on a node, as one phrase, and the file that has it."""

    text: str
    path: Path


@dataclass(frozen=True)
class NodeHealth:
    """The health of nodes: ranks that RAS calls `dead`, ranks that do not answer RAS, and faults of GPUs by host."""

    dead: frozenset[int] = frozenset()
    silent: frozenset[int] = frozenset()
    faults: Mapping[str, Sequence[Fault]] = field(default_factory=dict)
    ras_files: tuple[Path, ...] = ()

    def ras_state(self, rank: int) -> str:
        return DEAD if rank in self.dead else SILENT if rank in self.silent else ""


def read_health(run: Run, folders: Sequence[Path], processes: Mapping[int, Process]) -> NodeHealth:
    """Return the health of the nodes when dumps were taken.

    `folders` are the folders of the set of dumps; `processes` has the process of each rank.
    """
    ras = [a.path for a in run.of(Kind.RAS) if a.path.parent in folders]
    states = [state for path in ras for state in processes_in(_read_text(path))]
    by_state = {
        wanted: frozenset(
            rank
            for state, pid, node in states
            if state == wanted and (rank := rank_of_process(processes, pid, node)) is not None
        )
        for wanted in (DEAD, SILENT)
    }
    return NodeHealth(by_state[DEAD], by_state[SILENT] - by_state[DEAD], _read_faults(run), tuple(ras))


def _read_text(path: Path) -> str:
    """Return the content of a file as text; empty if it cannot be read."""
    try:
        return read_whole(path, _HEALTH_BYTES).decode(errors="replace")
    except OSError:
        return ""


def processes_in(text: str) -> list[tuple[str, int, str]]:
    """Return (heading, process id, node) of each process that a status of RAS lists under a heading."""
    found, state = [], ""
    for line in text.splitlines():
        if heading := _HEADING.fullmatch(line.strip()):
            state = heading["state"]
        elif state and (process := PROCESS.search(line)):
            found.append((state, int(process["pid"]), process["node"]))
    return found


def rank_of_process(processes: Mapping[int, Process], pid: int, node: str) -> int | None:
    """Return the rank of a process; None if no rank has this process id, or ranks of several nodes do.

    RAS names a node by its address, but the processes are listed with host names. So `node` decides between several
    ranks only if the address happens to be a host name.
    """
    ranks = [rank for rank, process in processes.items() if process.pid == pid]
    if len(ranks) > 1:
        ranks = [rank for rank in ranks if processes[rank].host == node]
    return ranks[0] if len(ranks) == 1 else None


def _read_faults(run: Run) -> dict[str, list[Fault]]:
    """Return the faults of GPUs by host, from the files in the folders `health` of a run."""
    faults: dict[str, list[Fault]] = {}
    for artefact in run.of(Kind.TEXT, Kind.DEVICE_STATE):
        path = artefact.path
        # Texts elsewhere are logs of the job.
        if path.parent.name != "health":
            continue
        kind, _, host = path.name.removesuffix(".txt").rpartition("smi_" if "smi_" in path.name else "dmesg_")
        texts = driver_errors(_read_text(path)) if not kind else device_faults(_read_text(path))
        faults.setdefault(host, []).extend(Fault(text, path) for text in texts[:_MOST_FAULTS])
    return faults


def driver_errors(text: str) -> list[str]:
    """Return a phrase for each error of a GPU in the kernel's log, each once."""
    found = [
        f"Xid {match['code']} of GPU {match['pci']}: {match['rest'].strip()}"
        for match in XID.finditer(text)
        if match["code"] not in _HARMLESS_XIDS
    ]
    found += [f"GPU {match['pci']} has fallen off the bus" for match in _LOST_GPU.finditer(text)]
    return list(dict.fromkeys(found))


def device_faults(text: str) -> list[str]:
    """Return a phrase for each GPU that `nvidia-smi -q` shows with uncorrectable memory errors since the last reset."""
    found, gpu, is_volatile = [], "", False
    for line in text.splitlines():
        if header := GPU.match(line):
            gpu, is_volatile = header["pci"], False
        elif line.strip() in ("Volatile", "Aggregate"):
            is_volatile = line.strip() == "Volatile"
        elif match := _VALUE.match(line):
            name, value = match["name"], match["value"].strip()
            if is_volatile and "Uncorrectable" in name and value.isdigit() and int(value):
                found.append(f"GPU {gpu} has {value} uncorrectable ECC errors ({name})")
            if name == "Remapping Failure Occurred" and value == "Yes":
                found.append(f"GPU {gpu} could not remap a faulty row of its memory")
    return found


# Find out which nodes of a job did not write all of their files to the common folder, and which ranks ran there.
#
# Each node writes a report there every few seconds, whatever its ranks do. If the reports of a node stop before its
# end, the node has died or lost its network.

_SILENT_NS = 45_000_000_000
"""A node counts as lost after this time in ns without a report: many times the usual pause, and what clocks differ."""
_OF_RANKS = (Kind.GROUPS, Kind.STEPS, Kind.FLIGHT, Kind.EXIT, Kind.STACKS)
_MOST_NODES = 20


@dataclass(frozen=True)
class LostNode:
    """A node whose last report was at `last_ns` (Unix nanoseconds), and its ranks, as far as known."""

    name: str
    ranks: tuple[int, ...]
    last_ns: int

    @property
    def last_time(self) -> str:
        return time.strftime("%H:%M:%S UTC", time.gmtime(self.last_ns / 1e9))


@dataclass(frozen=True)
class NodeGaps:
    """The nodes that did not write everything.

    `lost` nodes stopped reporting. `sending` nodes had not finished when others had. `absent` is the number of nodes
    that never wrote anything.
    """

    lost: tuple[LostNode, ...] = ()
    sending: tuple[LostNode, ...] = ()
    absent: int = 0
    absent_ranks: tuple[int, ...] = ()

    def phrases(self) -> list[str]:
        """Return a phrase for each thing that is missing because of a node."""
        ranks = f": no file of {rank_names(self.absent_ranks)}" if self.absent_ranks else ""
        return [
            *(f"{named(node)} is silent since {node.last_time}: later files of it are missing" for node in self.lost),
            *(f"{named(node)} had not sent all of its files" for node in self.sending),
            *([f"{quantity(self.absent, 'node')} sent nothing{ranks}"] if self.absent else []),
        ][:_MOST_NODES]


def named(node: LostNode) -> str:
    return f"node {node.name}" + (f" ({rank_names(node.ranks)})" if node.ranks else "")


def find_gaps(run: Run, world_size: int = 0) -> NodeGaps:
    """Return which nodes did not send all of their files to a run folder, and what is missing because of this.

    Without reports of nodes, because they share a disk or there is only one, nothing is missing.
    `world_size` is the number of ranks of the job, 0 if unknown.
    """
    known = read_node_list(run.root)
    if known is None:
        return NodeGaps()
    ranks = _ranks_by_node(run)
    silent = {
        name: LostNode(name, tuple(sorted(ranks.get(name, ()))), node.last_ns)
        for name, node in known.nodes.items()
        if not node.ended
    }
    until_ns = max(node.last_ns for node in known.nodes.values()) - _SILENT_NS
    lost = tuple(node for node in silent.values() if node.last_ns < until_ns)
    # While no node has ended, a node that has not ended is simply at work.
    any_ended = any(node.ended for node in known.nodes.values())
    sending = tuple(node for node in silent.values() if node not in lost) if any_ended else ()
    absent = max(0, known.expected - len(known.nodes))
    seen = set[int]().union(*ranks.values())
    return NodeGaps(
        lost=lost,
        sending=sending,
        absent=absent,
        absent_ranks=tuple(rank for rank in range(world_size) if rank not in seen) if absent else (),
    )


def _ranks_by_node(run: Run) -> dict[str, set[int]]:
    """Return {node: its ranks}, from the names of its files; the run folder's own files are under an empty name."""
    ranks: dict[str, set[int]] = {}
    for artefact in run.of(*_OF_RANKS):
        if artefact.rank is not None:
            ranks.setdefault(node_of(artefact.path, run.root) or "", set()).add(artefact.rank)
    return ranks
