"""Failures of devices, links and networks."""

from analyzers.case.facts import LogClass, Reason
from analyzers.case.hypothesis import Case, Tier
from analyzers.case.wording import at_step, first_with, place, quoted
from analyzers.failures.entry import Failure
from analyzers.words import rank_names


def hardware(case: Case) -> str:
    """Return the title for a broken device, link or node."""
    lead, facts = case.lead, case.lead.facts
    device = (
        f"the GPU at {facts.pci}" if facts.pci else f"the GPU of {rank_names(case.ranks)}" if case.ranks else "a GPU"
    )
    match case.reason:
        case Reason.NODE_FAILURE:
            return f"node {facts.host or ''} failed".replace("  ", " ")
        case Reason.FALLEN_OFF_BUS:
            return f"{device} has fallen off the bus{at_step(lead)}"
        case Reason.ECC:
            return f"{device} reported: {facts.name}{place(lead)}{at_step(lead)}"
        case Reason.LINK:
            return f"a network link failed: {quoted(lead)}"
        case Reason.XID_SOFTWARE:
            return f"{device} reported Xid {facts.xid}, which a program usually causes{at_step(lead)}"
    return f"{device} reported Xid {facts.xid}, a hardware error{at_step(lead)}"


def network(case: Case) -> str:
    """Return the title for a connection that failed."""
    lead = first_with(case, "peer")
    peer = lead.facts.peer
    if case.reason is Reason.REFUSED:
        return f"a connection to {peer} failed: {(lead.facts.name or '').strip()}"
    if case.reason is Reason.INFINIBAND:
        code = lead.facts.status
        status = "" if code is None else f" (error {code}{f', {_IB_STATUS[code]}' if code in _IB_STATUS else ''})"
        local = f"{lead.facts.host} lost its InfiniBand" if lead.facts.host else "InfiniBand lost the"
        return f"{local} connection to {peer or 'a peer'}{status}"
    return f"NCCL failed: {lead.facts.name or quoted(lead)}{at_step(lead)}"


_IB_STATUS = {
    4: "local protection error",
    5: "work request flushed",
    9: "remote invalid request",
    10: "remote access error",
    11: "remote operation error",
    12: "transport retry counter exceeded",
    13: "receiver-not-ready retry counter exceeded",
}
"""{code of `ibv_wc_status`: its meaning}; the code is the result of an InfiniBand request in libibverbs."""


HARDWARE = {
    Reason.NODE_FAILURE: "exclude this node from the next run, and report it",
    Reason.XID_SOFTWARE: "run with CUDA_LAUNCH_BLOCKING=1 and compute-sanitizer; if it stays on one node, treat it as"
    " broken",
    Reason.LINK: "check cables and ports of that node (`ibstat`, `ibdiagnet`), and exclude it from the next run",
}


_BROKEN_GPU = (
    "drain and reboot the node with this GPU (if the log does not name the node, the scheduler does), then check the"
    " GPU (`nvidia-smi -q -d ECC,ROW_REMAPPER`, `dcgmi diag -r 3`); replace it if this happens again"
)


_PORT_CLOSED = (
    "find the host with that address (`getent hosts ADDRESS`), and read the logs of its ranks: a refused connection"
    " usually means that a rank there had ended, and the error that ended it is the cause. If all of them were still"
    " running, check the firewall, and whether NCCL_SOCKET_IFNAME names the right interface"
)


_OTHER_END = (
    "read the log of the rank at the other end of the connection. If it failed before this error, its failure is the"
    " cause. If it was still running, check the network of both nodes (`ping`, `ibstat`, `ethtool`), and exclude a"
    " faulty node from the next run (Slurm: `--exclude=NODE`)"
)


def _for_network(case: Case) -> str:
    """Return how to distinguish a failed network from a process that had ended before."""
    return _PORT_CLOSED if case.reason is Reason.REFUSED else _OTHER_END


def _for_hardware(case: Case) -> str:
    """Return what to do about a broken device or node."""
    return HARDWARE.get(case.reason or Reason.XID, _BROKEN_GPU)


def _why_hardware(case: Case) -> str:
    """Return what an error of a device means."""
    if case.reason is Reason.FALLEN_OFF_BUS:
        address = case.lead.facts.pci
        named = f", and the lines above this message name its address, {address}" if address else ""
        return f"the GPU's driver no longer reaches the GPU over PCIe; the training program is not the cause{named}"
    if case.reason is Reason.XID_SOFTWARE:
        return ""
    return "such a message comes from the driver, the network or the scheduler; the training program is not its cause"


ENTRIES = (
    Failure(
        id="hardware.device",
        kind=LogClass.HARDWARE,
        what="A GPU, a link or a node reported an error.",
        when=lambda case: case.kind is LogClass.HARDWARE,
        headline=hardware,
        sentence=hardware,
        why=_why_hardware,
        next=(_for_hardware,),
        explains=("exceptions.*", "processes.*", "collectives.*", "network.*", "numerics.*"),
        tier=Tier.HARDWARE,
    ),
    Failure(
        id="network.connection",
        kind=LogClass.NETWORK,
        what="A connection between ranks failed or could not be opened.",
        when=lambda case: case.kind is LogClass.NETWORK,
        headline=network,
        sentence=network,
        why="",
        next=(_for_network,),
        tier=Tier.NETWORK,
    ),
)
