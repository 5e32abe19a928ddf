"""Write the titles of findings on jobs that did not start: what keeps the ranks from connecting."""

from collections.abc import Callable

from analyzers.logs.answers.cause import Cause
from analyzers.logs.findings.wording import at_line, first_with, place, quoted
from analyzers.logs.model import Reason
from analyzers.words import rank_names


def startup(cause: Cause) -> str:
    """Return the title for a job that did not start."""
    describe = _STARTUPS.get(cause.reason) if cause.reason else None
    lead = first_with(cause, "name")
    what = describe(cause) if describe else f"NCCL reports {lead.facts.name or quoted(lead)}{place(lead)}"
    return f"the job did not start: {what}"


def port_in_use(cause: Cause) -> str:
    """Return a clause for the title that names the port which is already in use."""
    port = first_with(cause, "port").facts.port
    return f"port {port or 'unknown'} is in use by another process"


def unreachable_master(cause: Cause) -> str:
    """Return a clause for the title that names the address of rank 0's store, which does not answer."""
    facts = first_with(cause, "peer").facts
    where = f" at {facts.peer}:{facts.port}" if facts.peer else ""
    return f"the store of rank 0{where} does not answer"


def missing_ranks(cause: Cause) -> str:
    """Return a clause for the title: which ranks did not join at the start, or how many joined."""
    lead = first_with(cause, "expected")
    facts = lead.facts
    if facts.expected is None and facts.ranks:
        return f"{rank_names(facts.ranks)} never joined {facts.operation}{at_line(lead)}"
    return "ranks are missing" + (f": {facts.joined} of {facts.expected} ranks joined" if facts.expected else "")


def nccl_versions(cause: Cause) -> str:
    """Return a clause for the title that names ranks with different versions of NCCL."""
    facts = first_with(cause, "name").facts
    return f"{rank_names(facts.ranks)} have different versions of NCCL: {facts.name}"


def duplicate_gpu(cause: Cause) -> str:
    """Return a clause for the title that names the two ranks which use the same device."""
    pair = first_with(cause, "ranks").facts.ranks
    return f"{' and '.join(f'rank {rank}' for rank in pair) or 'two ranks'} use the same GPU"


def _wrong_driver(cause: Cause) -> str:
    """Return a clause for the title on an unsuitable NVIDIA driver: the CUDA version that it supports, or the error.

    PyTorch writes this version as one number: 11040 is CUDA 11.4.
    """
    lead = first_with(cause, "name")
    name = lead.facts.name or ""
    if name.isdigit():
        newest = f"{int(name) // 1000}.{int(name) % 1000 // 10}"
        return f"the NVIDIA driver is too old for this build of PyTorch: it supports CUDA up to {newest}"
    return f"the NVIDIA driver does not match this build of PyTorch: {quoted(lead)}"


def unsupported_device(cause: Cause) -> str:
    """Return a clause for the title on a device that the installed driver does not support."""
    facts = first_with(cause, "pci").facts
    which = f"the GPU at {facts.pci}" if facts.pci else "a GPU"
    return f"the installed NVIDIA driver does not support {which}: {quoted(cause.lead)}"


_STARTUPS: dict[Reason, Callable[[Cause], str]] = {
    Reason.PORT_IN_USE: port_in_use,
    Reason.RENDEZVOUS_TIMEOUT: lambda _: "not all nodes joined the rendezvous in time",
    Reason.UNREACHABLE_MASTER: unreachable_master,
    Reason.MISSING_RANKS: missing_ranks,
    Reason.NCCL_VERSIONS: nccl_versions,
    Reason.NO_INTERFACE: lambda _: "NCCL found no network interface of the given name",
    Reason.DUPLICATE_GPU: duplicate_gpu,
    Reason.DRIVER: _wrong_driver,
    Reason.UNSUPPORTED_DEVICE: unsupported_device,
    Reason.NO_GPU: lambda cause: f"no usable GPU: {quoted(cause.lead)}{place(cause.lead)}",
    Reason.BAD_ARGUMENTS: lambda cause: f"the script rejects its arguments: {cause.lead.facts.name}",
    Reason.NO_SCRIPT: lambda cause: f"the script {cause.lead.facts.name} does not exist",
}
