"""Failures before the first step: rendezvous, ports, drivers, arguments."""

from collections.abc import Callable

from analyzers.case.facts import LogClass, Reason
from analyzers.case.hypothesis import Case, Tier
from analyzers.case.wording import at_line, first_with, place, quoted
from analyzers.failures.entry import Failure
from analyzers.words import rank_names


def startup(case: Case) -> str:
    """Return the title for a job that did not start."""
    describe = _STARTUPS.get(case.reason) if case.reason else None
    lead = first_with(case, "name")
    what = describe(case) if describe else f"NCCL reports {lead.facts.name or quoted(lead)}{place(lead)}"
    return f"the job did not start: {what}"


def port_in_use(case: Case) -> str:
    """Return a clause for the title that names the port which is already in use."""
    port = first_with(case, "port").facts.port
    return f"port {port or 'unknown'} is in use by another process"


def unreachable_master(case: Case) -> str:
    """Return a clause for the title that names the address of rank 0's store, which does not answer."""
    facts = first_with(case, "peer").facts
    where = f" at {facts.peer}:{facts.port}" if facts.peer else ""
    return f"the store of rank 0{where} does not answer"


def missing_ranks(case: Case) -> str:
    """Return a clause for the title: which ranks did not join at the start, or how many joined."""
    lead = first_with(case, "expected")
    facts = lead.facts
    if facts.expected is None and facts.ranks:
        return f"{rank_names(facts.ranks)} never joined {facts.operation}{at_line(lead)}"
    return "ranks are missing" + (f": {facts.joined} of {facts.expected} ranks joined" if facts.expected else "")


def nccl_versions(case: Case) -> str:
    """Return a clause for the title that names ranks with different versions of NCCL."""
    facts = first_with(case, "name").facts
    return f"{rank_names(facts.ranks)} have different versions of NCCL: {facts.name}"


def duplicate_gpu(case: Case) -> str:
    """Return a clause for the title that names the two ranks which use the same device."""
    pair = first_with(case, "ranks").facts.ranks
    return f"{' and '.join(f'rank {rank}' for rank in pair) or 'two ranks'} use the same GPU"


def _wrong_driver(case: Case) -> str:
    """Return a clause for the title on an unsuitable NVIDIA driver: the CUDA version that it supports, or the error.

    PyTorch writes this version as one number: 11040 is CUDA 11.4.
    """
    lead = first_with(case, "name")
    name = lead.facts.name or ""
    if name.isdigit():
        newest = f"{int(name) // 1000}.{int(name) % 1000 // 10}"
        return f"the NVIDIA driver is too old for this build of PyTorch: it supports CUDA up to {newest}"
    return f"the NVIDIA driver does not match this build of PyTorch: {quoted(lead)}"


def unsupported_device(case: Case) -> str:
    """Return a clause for the title on a device that the installed driver does not support."""
    facts = first_with(case, "pci").facts
    which = f"the GPU at {facts.pci}" if facts.pci else "a GPU"
    return f"the installed NVIDIA driver does not support {which}: {quoted(case.lead)}"


_STARTUPS: dict[Reason, Callable[[Case], str]] = {
    Reason.PORT_IN_USE: port_in_use,
    Reason.RENDEZVOUS_TIMEOUT: lambda _: "not all nodes joined the rendezvous in time",
    Reason.UNREACHABLE_MASTER: unreachable_master,
    Reason.MISSING_RANKS: missing_ranks,
    Reason.NCCL_VERSIONS: nccl_versions,
    Reason.NO_INTERFACE: lambda _: "NCCL found no network interface of the given name",
    Reason.DUPLICATE_GPU: duplicate_gpu,
    Reason.DRIVER: _wrong_driver,
    Reason.UNSUPPORTED_DEVICE: unsupported_device,
    Reason.NO_GPU: lambda case: f"no usable GPU: {quoted(case.lead)}{place(case.lead)}",
    Reason.BAD_ARGUMENTS: lambda case: f"the script rejects its arguments: {case.lead.facts.name}",
    Reason.NO_SCRIPT: lambda case: f"the script {case.lead.facts.name} does not exist",
}


STARTUP = {
    Reason.PORT_IN_USE: "end the process that uses the port (`ss -ltnp` names it; often it is an earlier run), or"
    " choose a different `--master-port`, or use `--standalone` on one node",
    Reason.RENDEZVOUS_TIMEOUT: "check on each node that the job started at all, that `--rdzv-endpoint`, `--rdzv-id` and"
    " `--nnodes` are the same, and that no firewall blocks the port",
    Reason.UNREACHABLE_MASTER: "check MASTER_ADDR and MASTER_PORT: the address must be that of the node of rank 0"
    " (`getent hosts`, `nc -zv HOST PORT` from this node), and rank 0 must have started",
    Reason.MISSING_RANKS: "read the logs of the ranks that did not join: they often died while importing or loading;"
    " check WORLD_SIZE, and that no two processes have the same RANK",
    Reason.NCCL_VERSIONS: "use one environment on all nodes: compare `python -c 'import torch;"
    " print(torch.__version__, torch.cuda.nccl.version())'`",
    Reason.NO_INTERFACE: "set NCCL_SOCKET_IFNAME (and GLOO_SOCKET_IFNAME) to an interface that each node has:"
    " `ip -br addr`",
    Reason.DUPLICATE_GPU: "call `torch.cuda.set_device(LOCAL_RANK)` before the first collective, and start no more"
    " ranks than the node has GPUs",
    Reason.INVALID_USAGE: "run with NCCL_DEBUG=WARN: it names the call; check that each rank has its own GPU",
    Reason.DRIVER: "install a newer driver, or a PyTorch built for a CUDA version that the driver supports"
    " (`nvidia-smi` shows the newest one; torch.version.cuda is that of PyTorch)",
    Reason.UNSUPPORTED_DEVICE: "install a driver that supports this GPU: an older GPU needs an older driver, or the"
    " closed kernel modules instead of the open ones",
    Reason.NO_GPU: "check `nvidia-smi` and CUDA_VISIBLE_DEVICES on that node, and that PyTorch was built for its GPU",
    Reason.BAD_ARGUMENTS: "correct the command line; the script's own arguments come after its name",
    Reason.NO_SCRIPT: "correct the path of the script, or check that this file exists on the node",
}


def _for_startup(case: Case) -> str:
    """Return what to check for a job that did not start."""
    if case.reason is Reason.NO_SCRIPT and (case.lead.facts.name or "").endswith("python"):
        return "write `torchrun script.py`, not `torchrun python script.py`: torchrun took `python` for the script"
    return STARTUP.get(case.reason or Reason.INVALID_USAGE, STARTUP[Reason.INVALID_USAGE])


def _of(reason: Reason) -> Callable[[Case], bool]:
    return lambda case: case.kind is LogClass.STARTUP and case.reason is reason


def _failed_start(name: str, reason: Reason, what: str, mechanism: str = "", rules_out: str = "") -> Failure:
    """Return the entry of a start that failed for one reason, which the event of the log names."""
    return Failure(
        id=f"startup.{name}",
        kind=LogClass.STARTUP,
        what=what,
        when=_of(reason),
        headline=startup,
        sentence=startup,
        why=mechanism,
        next=(_for_startup,),
        rules_out=rules_out,
        tier=Tier.OWN_FAILURE,
    )


ENTRIES = (
    _failed_start(
        "port_in_use",
        Reason.PORT_IN_USE,
        "The port of rank 0's store is taken, so no rank can find the others.",
        "rank 0 opens this port for the store through which all ranks find each other",
    ),
    _failed_start(
        "rendezvous_timeout",
        Reason.RENDEZVOUS_TIMEOUT,
        "Not all nodes joined torchrun's rendezvous in time.",
        "torchrun starts no rank before all nodes have joined",
    ),
    _failed_start(
        "unreachable_master",
        Reason.UNREACHABLE_MASTER,
        "The store of rank 0 does not answer at its address.",
        "all ranks find each other through a store that rank 0 opens",
    ),
    _failed_start(
        "missing_ranks",
        Reason.MISSING_RANKS,
        "Some ranks never joined the process group.",
        rules_out="a step was trained: then all ranks had joined",
    ),
    _failed_start(
        "nccl_versions",
        Reason.NCCL_VERSIONS,
        "Ranks use different versions of NCCL.",
        "NCCL connects only ranks that use the same version of it",
    ),
    _failed_start(
        "no_interface",
        Reason.NO_INTERFACE,
        "NCCL or gloo found no network interface of the given name.",
        "NCCL connects the ranks through a network interface, which NCCL_SOCKET_IFNAME may name",
    ),
    _failed_start(
        "duplicate_gpu",
        Reason.DUPLICATE_GPU,
        "Two ranks of one process group use the same GPU.",
        "NCCL needs a GPU of its own for each rank of a process group",
    ),
    _failed_start(
        "driver",
        Reason.DRIVER,
        "The NVIDIA driver does not fit this build of PyTorch.",
        "a build of PyTorch needs an NVIDIA driver that supports its version of CUDA",
    ),
    _failed_start(
        "no_gpu",
        Reason.NO_GPU,
        "The script asks for a GPU that PyTorch cannot use.",
        "the script asks for a GPU, and PyTorch finds none that it can use",
    ),
    _failed_start("unsupported_device", Reason.UNSUPPORTED_DEVICE, "The installed driver does not support a GPU."),
    _failed_start(
        "bad_arguments",
        Reason.BAD_ARGUMENTS,
        "The script rejects its command line.",
        "the script ended when it read its arguments, before it trained",
    ),
    _failed_start(
        "no_script",
        Reason.NO_SCRIPT,
        "The path of the script does not exist.",
        "Python was started with this path, and found no file there",
    ),
    Failure(
        id="startup.invalid_usage",
        kind=LogClass.STARTUP,
        what="NCCL was called in a way that it does not allow, most often by two ranks on one GPU.",
        when=lambda case: case.kind is LogClass.STARTUP,
        headline=startup,
        sentence=startup,
        why="",
        next=(_for_startup,),
    ),
)
