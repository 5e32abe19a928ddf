"""Failures before the first step: rendezvous, ports, drivers, arguments."""

import re
from collections.abc import Callable

from analyzers.case.facts import EventKind, LogClass, Reason
from analyzers.case.hypothesis import Case, Tier
from analyzers.case.wording import at_line, first_with, place, quoted
from analyzers.failures.entry import Advice, Example, Failure, sign, text_of
from analyzers.words import rank_names


def startup(case: Case) -> str:
    """Return the title for a job that did not start."""
    describe = _STARTUPS.get(case.reason) if case.reason else None
    lead = first_with(case, "name")
    return describe(case) if describe else f"NCCL reports {lead.facts.name or quoted(lead)}{place(lead)}"


def port_in_use(case: Case) -> str:
    """Return a clause for the title that names the port which is already in use."""
    port = first_with(case, "port").facts.port
    return f"port {port or 'unknown'} is in use by another process"


def unreachable_master(case: Case) -> str:
    """Return a clause for the title that names the address of rank 0's store, which does not answer."""
    facts = first_with(case, "peer").facts
    where = f" at {facts.peer}:{facts.port}" if facts.peer else ""
    return f"the store of {'torchrun' if _is_rendezvous(case) else 'rank 0'}{where} does not answer"


def _is_rendezvous(case: Case) -> bool:
    """Return whether it is the store of torchrun's rendezvous that does not answer, before any rank was started."""
    return case.reason is Reason.UNREACHABLE_MASTER and case.context.says("RendezvousConnectionError")


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


def _free_share(case: Case) -> str:
    """Return the share of the GPU that was free, rounded down."""
    return f"{int(100 * float(case.given['free']) / float(case.given['total'])) / 100:g}"


def _cache_tokens(case: Case) -> str:
    """Return how many tokens the KV cache holds, where the text says it."""
    return case.given.get("room") or case.given.get("most") or ""


def _cache_headline(case: Case) -> str:
    """Return the title for a KV cache that is too small, with the length that does not fit."""
    if case.given.get("length"):
        return f"The engine's KV cache has no room for one sequence of {case.given['length']} tokens (max_model_len)"
    return "The engine's share of the GPU leaves no room for its KV cache"


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
    Reason.NO_INTERFACE: lambda _: "NCCL found no usable network interface",
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
    if (first_with(case, "peer").facts.peer or "").isdecimal():
        return (
            "the name of this machine is a plain number, which is read as an address (0.x.x.x): give the address instead of --standalone,"
            " torchrun --rdzv-endpoint=localhost:29500 --local-addr=localhost, or MASTER_ADDR=127.0.0.1; or rename the machine"
        )
    if _is_rendezvous(case):
        return (
            "start torchrun on the node of --rdzv-endpoint first. It must recognise the endpoint as its own, or it opens no store: the"
            " address in its `ip -br addr`, or a name for which `getent hosts NAME` gives one there. Then the other nodes must reach"
            " the port (`nc -zv HOST PORT`, firewall); two jobs need two endpoints"
        )
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


_LISTENER = r"(?:port: |\]:|\d:)(?P<port>{})(?:, useIpv6[^\n]{{0,60}}EADDRINUSE| \(errno: 98)"
"""The port that a rank or launcher could not open, as PyTorch's messages name it."""
_FREE_PORT = (
    "give this start a free port: torchrun --standalone, or --rdzv-backend=c10d --rdzv-endpoint=localhost:0 (one node), --master-port=29501,"
    " accelerate --main_process_port 29501, deepspeed --master_port 29501"
)


def _opens_store_itself(case: Case) -> bool:
    """Return whether the script itself opened the store, not the launcher."""
    return case.called(r"init_process_group|_create_c10d_store|TCPStore|_rendezvous_handler") and not case.called(
        r"elastic/agent|launcher/api|distributed/run\.py|commands/launch\.py"
    )


def _meets_ranks(case: Case) -> bool:
    """Return whether the ranks of a job meet in the call that failed, and not a download."""
    return case.called(r"rendezvous|distributed_c10d|TCPStore") or "host not found" in case.lead.message


def _holder(case: Case) -> str:
    """Return how to find the process that has a port."""
    port = case.given["port"]
    return f"`ss -ltnp 'sport = :{port}'` names the process that has port {port}, if it is on this machine"


def _for_fixed_port(case: Case) -> str:
    """Return what to do where the port does not follow the command line."""
    return (
        f"if MASTER_PORT and the option have no effect, the program has the port in its own code: search for"
        f" {case.given['port']} and MASTER_PORT there"
    )


def _is_refused_by_wandb(case: Case) -> bool:
    """Return whether the server of wandb answered with a refusal."""
    return bool(re.search(r"\b40[134]\b|[Pp]ermission|not found|[Nn]ot allowed", case.given.get("reason") or ""))


_TEXTS: tuple[Failure, ...] = (
    Failure(
        id="startup.system_port",
        kind=LogClass.STARTUP,
        what="The store is to listen on a port of a system service, such as 22 of ssh.",
        signs=(sign("ddress already in use", _LISTENER.format(r"\d{1,3}|10[01]\d|102[0-3]")),),
        headline=lambda case: (
            f"The store of the ranks was given port {case.given['port']}"
            + (", the port of ssh" if case.given["port"] == "22" else ", a port of system services")
        ),
        why="ports below 1024 belong to services of the machine; launch scripts read PORT or MASTER_PORT from the"
        " environment, where a remote server or container may have set it for something else",
        next=(
            "set the port for the job: MASTER_PORT=29501 (or PORT=29501 for scripts that read PORT) in front of the command",
            "`env | grep -i port` shows where the number comes from",
        ),
        check="`env | grep -i port`",
        rules_out="a left-over training process",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "[W socket.cpp:401] [c10d] The server socket has failed to bind to [::]:22 (errno: 98 - Address already in"
                " use).\n"
                "[E socket.cpp:435] [c10d] The server socket has failed to listen on any local network address.",
                source="open-mmlab/mmpretrain#960",
                says=("port 22", "PORT=29501"),
            ),
        ),
        knowledge="services(5); open-mmlab/mmpretrain#960",
    ),
    Failure(
        id="startup.port_of_second_rank_zero",
        kind=LogClass.STARTUP,
        what="The script itself opens the store's port, and the port is taken, perhaps by another process of this job.",
        signs=(sign("ddress already in use", _LISTENER.format(r"\d{4,5}")),),
        when=_opens_store_itself,
        headline="Port {port} is taken: this process opens the store itself, as rank 0",
        why="only rank 0 opens the store; a second process that takes itself for rank 0, a store of the attempt before, or"
        " another job has the port",
        next=(
            "check that only one process is rank 0: take rank and world size from RANK, LOCAL_RANK and WORLD_SIZE of the"
            " launcher, not from a fixed argument such as --local_rank 0",
            "take a free port for each start and restart: MASTER_PORT=$(python -c 'import socket; s=socket.socket();"
            ' s.bind(("", 0)); print(s.getsockname()[1])\')',
            _for_fixed_port,
            _holder,
        ),
        check="print RANK, LOCAL_RANK and MASTER_PORT in each process before init_process_group",
        rules_out="it works with one process: then nobody else has the port",
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "model_zoo/pytorch/mnist_cnn.py", line 74, in setup\n'
                '    dist.init_process_group("nccl")\n'
                '  File "/usr/local/lib/python3.8/site-packages/torch/distributed/distributed_c10d.py", line 754, in'
                " init_process_group\n"
                "    store, rank, world_size = next(rendezvous_iterator)\n"
                '  File "/usr/local/lib/python3.8/site-packages/torch/distributed/rendezvous.py", line 177, in'
                " _create_c10d_store\n"
                "    return TCPStore(\n"
                "RuntimeError: The server socket has failed to listen on any local network address. The server socket has"
                " failed to bind to [::]:44796 (errno: 98 - Address already in use). The server socket has failed to bind to"
                " 0.0.0.0:44796 (errno: 98 - Address already in use).",
                source="intelligent-machine-learning/dlrover#443",
                says=("44796", "LOCAL_RANK", "free port"),
            ),
        ),
        knowledge="torch.distributed's documentation of TCPStore; pytorch/pytorch#85604",
    ),
    Failure(
        id="startup.port_taken",
        kind=LogClass.STARTUP,
        what="The port for the store of the ranks is taken.",
        signs=(sign("ddress already in use", _LISTENER.format(r"\d{4,5}")),),
        headline=lambda case: (
            f"Port {case.given['port']}, the default of torchrun, is already in use on this machine"
            if case.given["port"] == "29500"
            else f"Port {case.given['port']} for the store of the ranks is already in use on this machine"
        ),
        why="rank 0 opens this port for the store through which all ranks find each other",
        next=(
            Advice(
                "check first that only one process of this job is rank 0: rank and world size must come from RANK, LOCAL_RANK"
                " and WORLD_SIZE of the launcher, not from a fixed argument such as --local_rank 0",
                when=lambda case: case.given["port"] != "29500",
            ),
            lambda case: (
                (
                    "a second job on this machine probably uses the same default; "
                    if case.given["port"] == "29500"
                    else ""
                )
                + _FREE_PORT
            ),
            _for_fixed_port,
            _holder,
        ),
        check="`ss -ltnp` lists the ports that are in use",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. The"
                " server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use). The server socket has"
                " failed to bind to 0.0.0.0:29500 (errno: 98 - Address already in use).",
                source="meta-pytorch/torchtune#392",
                says=("29500", "--rdzv-endpoint=localhost:0"),
            ),
            Example(
                "RuntimeError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: 0,"
                " code: -98, name: EADDRINUSE, message: address already in use",
                source="xdit-project/mochi-xdit#22",
                says=("in its own code",),
            ),
        ),
        knowledge="torchrun's documentation; meta-pytorch/torchtune#392",
    ),
    Failure(
        id="startup.gpu_of_two_ranks",
        kind=LogClass.STARTUP,
        what="Two ranks of one process group use the same GPU, and NCCL says which.",
        signs=(
            sign(
                "Duplicate GPU detected",
                r"Duplicate GPU detected ?: rank (?P<a>\d+) and rank (?P<b>\d+) both on CUDA device (?P<bus>\w+)",
            ),
        ),
        headline="Ranks {a} and {b} use the same GPU (PCI bus {bus})",
        why="NCCL needs a GPU of its own for each rank; the number in its message is the GPU's PCI bus, not its index",
        next=(
            "start no more ranks than the node has visible GPUs: --nproc_per_node (GPUS_PER_NODE) against CUDA_VISIBLE_DEVICES"
            " and `nvidia-smi -L`",
            "call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the first collective, and remove a fixed device"
            " (cuda:0, a default GPU, CUDA_VISIBLE_DEVICES set in the script)",
            "under Ray or Slurm each process must see its own GPU: update Ray, or ask for one GPU for each task",
        ),
        check="print LOCAL_RANK, CUDA_VISIBLE_DEVICES and torch.cuda.current_device() in each rank",
        rules_out="the network or a broken GPU",
        explains=("exceptions.*",),
        examples=(
            Example(
                "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, invalid"
                " usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.20.5\n"
                "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
                "Last error:\n"
                "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 10",
                source="verl-project/verl#161",
                says=("Ranks 1 and 0 use the same GPU", "PCI bus 10", "Ray"),
            ),
        ),
        knowledge="NCCL's init.cc; verl-project/verl#161, NVIDIA/Megatron-LM#661",
    ),
    Failure(
        id="startup.store_lost",
        kind=LogClass.NETWORK,
        what="torchrun lost the store of its rendezvous.",
        signs=(sign("The connection to the C", r"The connection to the C10d store has failed"),),
        when=lambda case: not case.context.says("client socket has timed out after"),
        headline="torchrun lost the store of its rendezvous: its process is gone, or cannot be reached",
        why="the agents meet in a store that the host of --rdzv-endpoint serves; it is gone when that host's torchrun"
        " has ended, or when the network breaks; two jobs with the same endpoint share one store, and lose it when"
        " the job that opened it ends",
        next=(
            "give each job its own endpoint: --standalone on one node (or --rdzv-backend=c10d --rdzv-endpoint=localhost:0), another port and"
            " --rdzv-id on several",
            "read the log of the node that --rdzv-endpoint names: did its torchrun end, or not start?",
            "at the start: that node must recognise its own name (`getent hosts NAME` must give one of its addresses), else it"
            " does not open the store",
        ),
        check="`ss -ltnp` on that node shows who listens at the port",
        tier=Tier.UNREACHED,
        examples=(
            Example(
                "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has"
                " failed. See inner exception for details.",
                source="wenet-e2e/wespeaker#171",
                says=("its own endpoint", "localhost:0"),
            ),
        ),
        knowledge="torchrun's documentation; wenet-e2e/wespeaker#171, pytorch/pytorch#69197",
    ),
    Failure(
        id="startup.loopback_master",
        kind=LogClass.STARTUP,
        what="A rank looks for the store of rank 0 on its own machine, and finds none.",
        signs=(
            sign(
                "trying to connect to",
                r"timed out after \d+ ?m?s while trying to connect to \((?P<host>127\.0\.0\.1|localhost), (?P<port>\d+)\)",
            ),
        ),
        headline="The store of rank 0 at {host}:{port} does not answer: that is this machine itself",
        why="MASTER_ADDR is the loopback address, so each node looks for rank 0 on itself; on a single node rank 0 has not opened"
        " the store, or has ended",
        next=(
            "several nodes: set MASTER_ADDR (or --rdzv-endpoint) on all of them to the address of the node of rank 0, and"
            " --node-rank to a different number on each",
            "one node: read the log of rank 0 first; it ended or was not started, or another rank uses a different"
            " MASTER_PORT",
        ),
        check="`env | grep -E 'MASTER|RANK'` in each process",
        tier=Tier.UNREACHED,
        examples=(
            Example(
                ' File "/data/anaconda3/lib/python3.8/site-packages/torch/distributed/distributed_c10d.py", line 595, in init_process_group\n'
                "    store, rank, world_size = next(rendezvous_iterator)\n"
                "    store, rank, world_size = next(rendezvous_iterator)  \n"
                'File "/data/anaconda3/lib/python3.8/site-packages/torch/distributed/rendezvous.py", line 257, in _env_rendezvous_handler\n'
                "    store = _create_c10d_store(master_addr, master_port, rank, world_size, timeout)\n"
                '  File "/data/anaconda3/lib/python3.8/site-packages/torch/distributed/rendezvous.py", line 188, in _create_c10d_store\n'
                "    return TCPStore(\n"
                "TimeoutError: The client socket has timed out after 1800s while trying to connect to (127.0.0.1, 57388).",
                source="mk-minchul/AdaFace#87",
                says=("MASTER_ADDR",),
            ),
        ),
        knowledge="torch.distributed's documentation of env://",
    ),
    Failure(
        id="startup.deepspeed_resources",
        kind=LogClass.STARTUP,
        what="DeepSpeed's launcher was given a host or a GPU that is not in its list.",
        signs=(
            sign("No slot", r"No slot '(?P<slot>[^'\n]{1,20})' specified on host '(?P<host>[^'\n]{1,80})'"),
            sign("not found in hostfile", r"Hostname '(?P<host>[^'\n]{1,80})' not found in hostfile(?P<slot>)"),
        ),
        headline=lambda case: (
            f"DeepSpeed knows no GPU {case.given['slot']} on host {case.given['host']}"
            if case.given["slot"]
            else f"Host {case.given['host']} is not in DeepSpeed's hostfile"
        ),
        why="its list comes from the hostfile (slots=N), or without one from the GPUs that are visible on this machine",
        next=(
            "name GPUs that exist: --include HOST:0,1 counts from 0 up to slots - 1; on one machine leave CUDA_VISIBLE_DEVICES"
            " unset and use --include localhost:...",
            "correct slots=N of that host in the hostfile (default /job/hostfile)",
        ),
        check="`nvidia-smi -L` on that host; the hostfile",
        examples=(
            Example(
                "[2024-02-06 10:28:18,407] [INFO] [real_accelerator.py:191:get_accelerator] Setting ds_accelerator to cuda (auto detect)\n"
                "[2024-02-06 10:28:20,906] [WARNING] [runner.py:202:fetch_hostfile] Unable to find hostfile, will proceed with training with local resources only.\n"
                "Detected CUDA_VISIBLE_DEVICES=1: setting --include=localhost:1\n"
                "Traceback (most recent call last):\n"
                '  File "/home/user/envs/yi/bin/deepspeed", line 6, in <module>\n'
                "    main()\n"
                '  File "/home/user/envs/yi/lib/python3.10/site-packages/deepspeed/launcher/runner.py", line 426, in main\n'
                "    active_resources = parse_inclusion_exclusion(resource_pool, args.include, args.exclude)\n"
                "ValueError: No slot '1' specified on host 'localhost'",
                source="01-ai/Yi#392",
            ),
        ),
        knowledge="DeepSpeed's launcher/runner.py",
    ),
    Failure(
        id="startup.more_ranks_than_gpus",
        kind=LogClass.STARTUP,
        what="A rank chooses a GPU number that its process does not see.",
        signs=(sign("invalid device ordinal"),),
        headline="A GPU number was used that this process does not see{place}",
        why="the process sees fewer GPUs than the number that was used: most often more ranks on a node than GPUs, a"
        " global rank used as device, or a scheduler that shows each task only its own GPU",
        next=(
            Advice(
                "the text binds GPUs to tasks (--accel-bind, --gpu-bind or --gpus-per-task), so that each task sees only its own as cuda:0, while the script selects"
                " its local rank: leave that option out (srun --gpu-bind=none), or use cuda:0 in each task",
                when=lambda case: case.context.says(r"--(?:accel-bind|gpu-bind|gpus-per-task)\b(?!=none)"),
            ),
            "print torch.cuda.device_count() and CUDA_VISIBLE_DEVICES in each rank, beside the number that it selects; start as"
            " many ranks on a node as there are GPUs (--nproc_per_node; `nvidia-smi -L` lists them)",
            "use the local rank for the device: torch.cuda.set_device(int(os.environ['LOCAL_RANK'])), not RANK or a fixed"
            " number such as cuda:1",
        ),
        check="python -c 'import torch; print(torch.cuda.device_count())' inside the job",
        rules_out="a defect of a GPU; the driver",
        examples=(
            Example(
                "RuntimeError: cuda runtime error (10) : invalid device ordinal at /pytorch/torch/csrc/cuda/Module.cpp:33\n"
                "THCudaCheck FAIL file=/pytorch/torch/csrc/cuda/Module.cpp line=33 error=10 : invalid device ordinal",
                source="HRNet/HRNet-Semantic-Segmentation#171",
                says=("--nproc_per_node", "CUDA_VISIBLE_DEVICES"),
            ),
        ),
        knowledge="CUDA's documentation of cudaErrorInvalidDevice",
    ),
    Failure(
        id="startup.fabric_manager",
        kind=LogClass.STARTUP,
        what="CUDA cannot start (error 802), most often because the fabric manager of the NVSwitch is not running or"
        " not ready.",
        signs=(sign("system not yet initialized"),),
        headline="CUDA cannot start: the system is not yet initialised (802), most often the fabric manager",
        why="on machines with NVSwitch (HGX, DGX) CUDA works only after nvidia-fabricmanager has configured it, in exactly the"
        " driver's version; nothing in the program is wrong",
        next=(
            "start it: systemctl status nvidia-fabricmanager, then start; install the package of the driver's own version"
            " (`nvidia-smi` against `nv-fabricmanager --version`)",
            "or run on another node, and report this one",
        ),
        check="`nvidia-smi -q | grep -i -A2 fabric` must say Completed",
        event=EventKind.KNOWN,
        explains=("startup.*", "exceptions.*"),
        examples=(
            Example(
                "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling"
                " NumCudaDevices() that might have already set an error? Error 802: system not yet initialized",
                source="huggingface/huggingface_hub#4134",
                says=("fabric manager", "nvidia-fabricmanager"),
            ),
        ),
        knowledge="NVIDIA's user guide of the fabric manager",
    ),
    Failure(
        id="startup.driver_combination",
        kind=LogClass.STARTUP,
        what="The driver's libraries do not fit its kernel module, or the compatibility libraries do not fit this GPU.",
        signs=(
            sign(
                "unsupported display driver",
                r"(?P<code>system has unsupported display driver / cuda driver combination)",
            ),
            sign(
                "forward compatibility was attempted",
                r"(?P<code>forward compatibility was attempted on non supported HW)",
            ),
        ),
        headline=lambda case: (
            "The driver's library is newer than its kernel module, and this GPU does not support that (804)"
            if "forward" in case.given["code"]
            else "The driver's library and its kernel module do not fit each other (803)"
        ),
        why=lambda case: (
            "the libcuda that is loaded is newer than the driver's kernel module: a driver that was updated without a reboot, or"
            " an image with cuda-compat, which works on data-centre GPUs only"
            if "forward" in case.given["code"]
            else "the driver was updated without a reboot, or a container brings its own libcuda"
        ),
        next=(
            "reboot the node if its driver was updated",
            "in a container keep the host's libcuda: take /usr/local/cuda/compat out of LD_LIBRARY_PATH (and of"
            " /etc/ld.so.conf.d), and run ldconfig",
            Advice(
                "update the driver of the host to one for the image's CUDA, or use an image for the CUDA that `nvidia-smi`"
                " shows",
                when=lambda case: "forward" in case.given["code"],
            ),
        ),
        check="`ldconfig -p | grep libcuda.so` and `cat /proc/driver/nvidia/version`",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 803: system has unsupported display driver / cuda driver combination",
                source="CompVis/stable-diffusion#438",
                says=("803",),
            ),
            Example(
                "THCudaCheck FAIL file=/opt/conda/conda-bld/pytorch_1591914855613/work/aten/src/THC/THCGeneral.cpp line=47 error=804 : forward compatibility was attempted on non supported HW\n"
                "Traceback (most recent call last):\n"
                '  File "fc_model_sub_episodes.py", line 278, in <module>\n'
                "    main()\n"
                '  File "fc_model_sub_episodes.py", line 264, in predict\n'
                "    states, actions = xb['states'].cuda(), xb['actions'].cuda()\n"
                '  File "/home/user/miniconda3/envs/my_proj/lib/python3.7/site-packages/torch/cuda/__init__.py", line 153, in _lazy_init\n'
                "    torch._C._cuda_init()\n"
                "RuntimeError: cuda runtime error (804) : forward compatibility was attempted on non supported HW at /opt/conda/conda-bld/pytorch_1591914855613/work/aten/src/THC/THCGeneral.cpp:47",
                source="pytorch/pytorch#40671",
                says=("804",),
            ),
        ),
        knowledge="NVIDIA's page on CUDA compatibility",
    ),
    Failure(
        id="startup.gpu_busy",
        kind=LogClass.STARTUP,
        what="A GPU is in exclusive mode, or hangs, so that this process cannot open it.",
        signs=(sign("busy or unavailable", r"CUDA-capable device(?:s|\(s\))? (?:is/are|are|is) busy or"),),
        headline="The GPU does not accept this process (busy or unavailable)",
        why="another process has it in the compute mode EXCLUSIVE_PROCESS (a second rank on the same GPU is enough), its MIG or"
        " vGPU setting or its driver is not in order, or it hangs",
        next=(
            "see who has it: nvidia-smi --query-compute-apps=pid,name --format=csv; give each rank its own GPU"
            " (set_device(LOCAL_RANK))",
            "nvidia-smi -q -d COMPUTE: if it is Exclusive_Process and should not be, nvidia-smi -c 0 (root)",
            "if no process has it: check `dmesg | grep -i xid`, reset the GPU (nvidia-smi -r), reboot, or install the driver anew",
        ),
        check="`nvidia-smi` alone, and a one-line program on that GPU",
        examples=(
            Example(
                '  File "evaluate.py", line 104, in <module>\n'
                "    main(args)\n"
                '  File "evaluate.py", line 54, in test\n'
                "    nnet = NetworkFactory(system_config, model)\n"
                '  File "/data/user/CornerNet-Lite/core/models/py_utils/data_parallel.py", line 61, in __init__\n'
                "    self.module.cuda(device_ids[0])\n"
                "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
                source="princeton-vl/CornerNet-Lite#87",
            ),
            Example(
                "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
                says=("Exclusive_Process",),
            ),
            Example(
                "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable\n"
                "CUDA kernel errors might be asynchronously reported at some other API call",
                says=("EXCLUSIVE_PROCESS",),
            ),
        ),
        knowledge="CUDA's documentation of cudaErrorDevicesUnavailable",
    ),
    Failure(
        id="startup.no_visible_gpu",
        kind=LogClass.STARTUP,
        what="PyTorch sees no GPU at all.",
        signs=(
            sign("No CUDA GPUs are available"),
            sign("no GPUs found", r"ProcessGroupNCCL is only supported with GPUs"),
        ),
        headline="This process sees no GPU",
        why="PyTorch has CUDA, and the driver shows it no device: most often none is given to the job or container, or"
        " CUDA_VISIBLE_DEVICES hides it; else the device was lost while the machine ran",
        next=(
            "print CUDA_VISIBLE_DEVICES in the process: empty, -1 or a number that does not exist hides all; it must be set"
            " before CUDA is first used",
            "ask for GPUs: Slurm --gres=gpu:N (and srun inside the allocation), docker --gpus all, Kubernetes"
            " nvidia.com/gpu, Ray num_gpus=1 for this actor",
            "check that `nvidia-smi -L` lists GPUs in the same place",
            "if it had a GPU before (an earlier CUDA error in the log), restart the container, or the node if"
            " `nvidia-smi` fails there, too",
        ),
        check="`nvidia-smi -L` and `echo $CUDA_VISIBLE_DEVICES` inside the job",
        examples=(
            Example(
                "RuntimeError: No CUDA GPUs are available",
                source="Grace9994/CoMoSVC#6",
                says=("CUDA_VISIBLE_DEVICES",),
            ),
        ),
        knowledge="torch.cuda's documentation",
    ),
    Failure(
        id="startup.cuda_unknown_error",
        kind=LogClass.STARTUP,
        what="CUDA could not be initialised, with an unknown error.",
        signs=(
            sign(
                "CUDA unknown error",
                r"(?<!CUDA initialization: )CUDA unknown error - this may be due to an incorrectly set up environment",
            ),
        ),
        headline="CUDA could not start (unknown error)",
        why="the kernel module nvidia_uvm is often not loaded or broken, as after suspend, an update or a lost GPU;"
        " the hint on CUDA_VISIBLE_DEVICES applies where the program changes it while it runs",
        next=(
            "reload nvidia_uvm: modprobe -r nvidia_uvm && modprobe nvidia_uvm; or reboot the node",
            "look for lost GPUs: `dmesg | grep -i -E 'xid|nvrm'`, and `nvidia-smi`",
            "in containers: the devices /dev/nvidia-uvm* must be there; set CUDA_VISIBLE_DEVICES before the program starts",
        ),
        check="does a one-line program (torch.zeros(1).cuda()) fail too?",
        examples=(
            Example(
                "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable CUDA_VISIBLE_DEVICES after program start. Setting the available devices to be zero.",
                source="zai-org/ChatGLM-6B#649",
                says=("CUDA_VISIBLE_DEVICES",),
            ),
        ),
        knowledge="c10/cuda/CUDAFunctions.cpp",
    ),
    Failure(
        id="startup.local_rank_argument",
        kind=LogClass.STARTUP,
        what="The launcher passes --local-rank or --local_rank, and the script does not accept it.",
        signs=(sign("unrecognized arguments", r"unrecognized arguments: [^\n]{0,200}?--(?P<name>local[-_]rank)"),),
        headline="The launcher passes --{name}, which the script does not accept",
        why="torch.distributed.launch of PyTorch 2.0 and newer writes --local-rank with a hyphen, before --local_rank;"
        " the launcher of deepspeed writes --local_rank; torchrun passes none and sets LOCAL_RANK",
        next=(
            "accept both: parser.add_argument('--local-rank', '--local_rank', type=int, default=0)",
            "or, if it is torch.distributed.launch, start with torchrun in its place, and read"
            " int(os.environ['LOCAL_RANK'])",
        ),
        check="python -c 'import torch; print(torch.__version__)'",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "/usr/local/lib/python3.10/dist-packages/torch/distributed/launch.py:181: FutureWarning: The module torch.distributed.launch is deprecated\n"
                "and will be removed in future. Use torchrun.\n"
                "Note that --use-env is set by default in torchrun.\n"
                "If your script expects `--local-rank` argument to be set, please\n"
                "change it to read from `os.environ['LOCAL_RANK']` instead. See \n"
                "https://pytorch.org/docs/stable/distributed.html#launch-utility for \n"
                "further instructions\n"
                "\n"
                "  warnings.warn(\n"
                "usage: general_train.py\n"
                "       [-h]\n"
                "       [--setting SETTING]\n"
                "       [--local_rank LOCAL_RANK]\n"
                "       [--train_upto_epoch TRAIN_UPTO_EPOCH]\n"
                "       [--exp_id EXP_ID]\n"
                "       [--opt_model_size OPT_MODEL_SIZE]\n"
                "general_train.py: error: unrecognized arguments: --local-rank=0\n"
                "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 2) local_rank: 0 (pid: 3049) of binary: /usr/bin/python3",
                source="babylm/baseline-pretraining#2",
                says=("--local-rank",),
            ),
            Example(
                "usage: train_adgen.py [-h] [--model_path MODEL_PATH] [--dataset DATASET]\n"
                "                      [--lr LR] [--batch_size BATCH_SIZE] [--epoch EPOCH]\n"
                "                      [--data_dir DATA_DIR]\n"
                "train_adgen.py: error: unrecognized arguments: --local_rank=2\n"
                "usage: train_adgen.py [-h] [--model_path MODEL_PATH] [--dataset DATASET]\n"
                "                      [--lr LR] [--batch_size BATCH_SIZE] [--epoch EPOCH]\n"
                "                      [--data_dir DATA_DIR]\n"
                "train_adgen.py: error: unrecognized arguments: --local_rank=0\n"
                "Traceback (most recent call last):\n"
                '  File "/home/user/miniconda/lib/python3.6/runpy.py", line 193, in _run_module_as_main\n'
                '    "__main__", mod_spec)',
                source="FudanNLP/CPT#65",
            ),
        ),
        knowledge="PyTorch 2.0's release notes",
    ),
    Failure(
        id="startup.no_process_group",
        kind=LogClass.STARTUP,
        what="torch.distributed is used before the process group exists.",
        signs=(sign("Default process group has not been initialized"),),
        headline="torch.distributed is used where there is no process group{place}",
        why="a collective, get_rank or a distributed layer (SyncBatchNorm, DistributedSampler) runs, and"
        " init_process_group was not called in this process yet, or the group was destroyed",
        next=(
            "start with torchrun (or accelerate launch, deepspeed), also for one GPU, and call"
            " torch.distributed.init_process_group before the line of the traceback",
            "for a run without distribution: guard the call with torch.distributed.is_initialized(), and replace SyncBN by BN"
            " in the configuration",
        ),
        check="print(torch.distributed.is_initialized(), os.environ.get('WORLD_SIZE'))",
        examples=(
            Example(
                'instructseg/eval/seg/eval_res.py", line 71, in all_reduce\n'
                "    dist.all_reduce(total, dist.ReduceOp.SUM, async_op=False)\n"
                "ValueError: Default process group has not been initialized, please make sure to call init_process_group.",
                source="congvvc/InstructSeg#7",
                says=("torchrun",),
            ),
            Example(
                "ValueError: Default process group has not been initialized, please make sure to call init_process_group.",
                says=("or the group was destroyed",),
            ),
        ),
        knowledge="torch.distributed's documentation",
    ),
    Failure(
        id="startup.no_launcher",
        kind=LogClass.STARTUP,
        what="A distributed script was started without a launcher, so the variables of the ranks are missing.",
        signs=(
            sign("expected, but not set", r"environment variable (?P<name>\w+) expected, but not set"),
            sign("No module named", r"No module named '(?P<name>mpi4py)'"),
        ),
        headline=lambda case: (
            "DeepSpeed was started without its launcher, and looks for MPI"
            if case.given["name"] == "mpi4py"
            else f"{case.given['name']} is not set: most often the script was started without a launcher"
        ),
        why=lambda case: (
            "without RANK and WORLD_SIZE in the environment DeepSpeed asks mpi4py for them"
            if case.given["name"] == "mpi4py"
            else "the method env:// of init_process_group reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which the launcher sets"
        ),
        next=(
            "start it with torchrun --nproc_per_node=N script.py (or deepspeed, accelerate launch), also for one GPU",
            "under srun set them from Slurm: RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID, and"
            " MASTER_ADDR and MASTER_PORT for all",
            Advice(
                "in a notebook set RANK=0, LOCAL_RANK=0, WORLD_SIZE=1, MASTER_ADDR=localhost and MASTER_PORT before",
                when=lambda case: case.given["name"] == "mpi4py",
            ),
        ),
        check="`env | grep -E 'RANK|WORLD_SIZE|MASTER'` inside the job",
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "train_WIP.py", line 11, in <module>\n'
                '    torch.distributed.init_process_group(backend="nccl", world_size=4)\n'
                '  File "/home/user/rife/env/lib/python3.8/site-packages/torch/distributed/distributed_c10d.py", line 423, in init_process_group\n'
                "    store, rank, world_size = next(rendezvous_iterator)\n"
                '  File "/home/user/rife/env/lib/python3.8/site-packages/torch/distributed/rendezvous.py", line 166, in _env_rendezvous_handler\n'
                '    raise _env_error("MASTER_ADDR")\n'
                "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable MASTER_ADDR expected, but not set",
                source="hzwer/ECCV2022-RIFE#52",
                says=("torchrun",),
            ),
            Example(
                "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set",
                source="meta-llama/llama#391",
                says=("torchrun",),
            ),
            Example(
                "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected,"
                " but not set",
                says=("torchrun", "RANK is not set"),
            ),
            Example(
                'Traceback (most recent call last):\n  File "/e/lib/python3.11/site-packages/deepspeed/comm/comm.py", line 688, in'
                " mpi_discovery\n    from mpi4py import MPI\nModuleNotFoundError: No module named 'mpi4py'",
                says=("without its launcher",),
            ),
        ),
        knowledge="torch.distributed's documentation of env://; DeepSpeed's comm/comm.py",
        when=lambda case: (
            case.given["name"] != "mpi4py" or case.called("deepspeed/") or case.printed("deepspeed|mpi_discovery")
        ),
        near_misses=("ModuleNotFoundError: No module named 'mpi4py'",),
    ),
    Failure(
        id="startup.name_not_resolved",
        kind=LogClass.STARTUP,
        what="The name of the node of rank 0 cannot be resolved to an address.",
        signs=(
            sign("can't resolve", r"nslookup: can't resolve '(?P<name>[^'\n]{0,120})'"),
            sign(
                "Name or service not known",
                r"\((?P<name>[\w.-]+), \d+\)[^\n]{0,80}\(gai error: -\d+ - Name or service not",
            ),
            sign(
                "network addresses of", r"network addresses of \((?P<name>[^,()\n]{0,120}), \d+\) cannot be retrieved"
            ),
            sign(
                "host not found",
                r"(?<!\w )host not found: (?P<name>)(?:Name or service|nodename nor|Temporary|No address|No such)",
            ),
            sign("gaierror", r"gaierror: \[Errno (?:-[235]|8|11001)\](?P<name>)"),
        ),
        headline=lambda case: (
            "A node's name cannot be resolved here"
            + (f": {case.given['name']}" if case.given["name"] not in {"", "(null)"} else ": MASTER_ADDR or DNS")
            if case.given["name"] or _meets_ranks(case)
            else "A host name cannot be resolved on this node: DNS, or a name that is wrong"
        ),
        why=lambda case: (
            "without its address this node cannot reach the store of rank 0; a name of (null) is a variable that was empty"
            if case.given["name"] or _meets_ranks(case)
            else "neither /etc/hosts nor the name server of this node or container knows the name"
        ),
        next=(
            Advice(
                "find the name in the message or in its frames; if it is of the internet, this node has no way there:"
                " fetch the files before, and set HF_HUB_OFFLINE=1 for those of the hub",
                when=lambda case: not case.given["name"] and not _meets_ranks(case),
            ),
            Advice(
                "for the store of rank 0, set MASTER_ADDR (or --rdzv-endpoint) to an IP address, or a name that `getent"
                " hosts NAME` resolves on each node: Slurm: scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1",
                when=lambda case: bool(case.given["name"]) or _meets_ranks(case) or not case.lead.calls,
            ),
            Advice(
                "Kubernetes: the headless service of the master must exist and its pod must run first; check the service name, the"
                " namespace and publishNotReadyAddresses",
                when=lambda case: bool(case.given["name"]) or _meets_ranks(case) or not case.lead.calls,
            ),
            "if no name resolves, DNS is broken in this node or container: `cat /etc/resolv.conf`",
        ),
        check="`getent hosts NAME` and `env | grep MASTER` on this node",
        event=EventKind.KNOWN,
        explains=("exceptions.*", "startup.*"),
        examples=(
            Example(
                "nslookup: can't resolve '(null)': Name does not resolve\n"
                "nslookup: can't resolve 'dlc1abcd-master-0': Name does not resolve\n"
                "waiting for master",
                source="modelscope/ms-swift#6368",
                says=("MASTER_ADDR", "headless service"),
            ),
            Example(
                "socket.gaierror: [Errno -3] Temporary failure in name resolution",
                says=("resolv.conf",),
            ),
            Example(
                "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (worker-0,"
                " 29500). The IPv6 network addresses of (worker-0, 29500) cannot be retrieved (gai error: -3 - Temporary failure in"
                " name resolution).",
                says=("worker-0", "getent hosts"),
            ),
            Example("RuntimeError: host not found: Name or service not known", says=("MASTER_ADDR", "scontrol")),
        ),
        knowledge="getaddrinfo(3); torch.distributed's documentation",
    ),
    Failure(
        id="startup.main_guard",
        kind=LogClass.STARTUP,
        what="A spawned process starts processes while it imports the script, most often because its main part is not"
        " protected.",
        signs=(
            sign(
                "bootstrapping phase",
                r"start a new process before the\s+current process has finished its bootstrapping",
            ),
            sign("An attempt has been made to start a new process before the"),
        ),
        event=EventKind.KNOWN,
        headline="A process is started while the script is imported again: most often a main guard lacks",
        why="spawned processes (the default on Windows and macOS) import the script again, and would start workers themselves",
        next=(
            "put everything that runs under `if __name__ == '__main__':` (a function main(), called there)",
            "or num_workers=0",
        ),
        check="the script's top level has a loop over a DataLoader or a Process.start()",
        examples=(
            Example(
                "RuntimeError:\n"
                "        An attempt has been made to start a new process before the\n"
                "        current process has finished its bootstrapping phase.\n"
                "\n"
                "        This probably means that you are not using fork to start your\n"
                "        child processes and you have forgotten to use the proper idiom\n"
                "        in the main module:\n"
                "\n"
                "            if __name__ == '__main__':\n"
                "                freeze_support()\n"
                "                ...\n"
                "\n"
                '        The "freeze_support()" line can be omitted if the program\n'
                "        is not going to be frozen to produce an executable.",
                source="prafull7/materialistic#2",
                says=("__main__",),
            ),
        ),
        knowledge="Python's documentation of multiprocessing: safe importing of main module",
    ),
    Failure(
        id="startup.start_method",
        kind=LogClass.STARTUP,
        what="The start method of multiprocessing was set twice.",
        signs=(sign("context has already been set"),),
        headline="set_start_method was called twice, or after processes were created{place}",
        why="the start method may be set only once in a program",
        next=(
            "call it once, first of all, under `if __name__ == '__main__':`; or set_start_method('spawn', force=True)",
            "or use a context of your own: multiprocessing.get_context('spawn')",
        ),
        check="search for set_start_method",
        examples=(
            Example(
                "# lm_train.py --config conf/lm.yaml --ngpu 1 --backend pytorch --verbose 1 --outdir exp/train_rnnlm_pytorch_lm_word100\n"
                "# Started at Sat Oct 12 15:09:23 UTC 2019\n"
                "#\n"
                "Traceback (most recent call last):\n"
                '  File "/content/espnet/egs/an4/asr1/../../../espnet/bin/lm_train.py", line 170, in <module>\n'
                "    mp.set_start_method('spawn')\n"
                '  File "/usr/lib/python3.6/multiprocessing/context.py", line 242, in set_start_method\n'
                "    raise RuntimeError('context has already been set')\n"
                "RuntimeError: context has already been set\n"
                "# Accounting: time=1 threads=1\n"
                "# Ended (code 1) at Sat Oct 12 15:09:24 UTC 2019, elapsed time 1 seconds",
                source="espnet/espnet#1266",
                says=("force=True",),
            ),
            Example(
                "Traceback (most recent call last):\n"
                '  File "tools/run_net.py", line 63, in <module>\n'
                '    torch.multiprocessing.set_start_method("forkserver")\n'
                '  File "/home/user/anaconda3/lib/python3.6/multiprocessing/context.py", line 241, in set_start_method\n'
                "    raise RuntimeError('context has already been set')\n"
                "RuntimeError: context has already been set",
                source="facebookresearch/SlowFast#204",
                says=("force=True",),
            ),
        ),
        knowledge="Python's documentation of multiprocessing",
    ),
    Failure(
        id="startup.no_network",
        kind=LogClass.STARTUP,
        what="A program wants to download a file, and this machine has no way to the network.",
        signs=(
            sign(
                "urlopen error",
                r"<urlopen error \[Errno (?:-2|-3|101|110|111|113)\] (?P<reason>[A-Z][\w ]{5,60})>",
            ),
        ),
        headline="A download or request failed: {reason}",
        why="compute nodes of clusters often have no way to the internet; most often the program asks for a file that"
        " is not in its cache",
        next=(
            "download the file once on a machine with internet (the login node), into the cache that the failing line names, or give its"
            " path to the program; then start again",
            "if the node should have a network: a proxy (https_proxy), name resolution, a firewall",
        ),
        check="curl -sI https://pypi.org on that node",
        explains=("exceptions.*",),
        examples=(
            Example(
                "urllib.error.URLError: <urlopen error [Errno 101] Network is unreachable>",
                says=("login node", "Network is unreachable"),
            ),
            Example(
                "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
                says=("login node",),
            ),
        ),
        knowledge="urllib; the man page of connect(2)",
    ),
    Failure(
        id="startup.hub_upload",
        kind=LogClass.STARTUP,
        what="A trainer wants to create a repository on the model hub or to upload to it, and cannot reach it.",
        signs=(
            sign(
                "Max retries exceeded with url",
                r"Max retries exceeded with url: /api/(?:repos/create|\w+/[^\s'\"]{1,120}/(?:commit|preupload|branch|tag))\b",
            ),
        ),
        headline="The program wants to upload to the model hub, and its request failed",
        why="most often push_to_hub makes the trainer create the repository at its start and upload at each save; that"
        " needs the network, other than loading from a cache",
        next=(
            "switch it off: push_to_hub=False (hub_strategy='end' uploads once, at the end), and upload from a node with internet later",
            "or give the node a way to it: https_proxy, or HF_ENDPOINT for a mirror",
        ),
        check="curl -sI https://huggingface.co on that node",
        rules_out="the URL is one of a file that is loaded (/resolve/, /api/models)",
        explains=("exceptions.*", "startup.hub_unreachable"),
        examples=(
            Example(
                "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with"
                " url: /api/repos/create (Caused by NewConnectionError('Failed to establish a new connection: [Errno 101] Network is"
                " unreachable'))",
                says=("push_to_hub=False",),
            ),
        ),
        knowledge="huggingface_hub: HfApi.create_repo",
    ),
    Failure(
        id="startup.hub_unreachable",
        kind=LogClass.STARTUP,
        what="The model hub cannot be reached from this node, most often for a file that is not in the cache.",
        signs=(
            sign("connect to 'https://", r"couldn't connect to '(?P<host>https?://[^'\n]{3,80})' to load"),
            sign("LocalEntryNotFoundError"),
            sign("is enabled", r"Cannot reach (?P<host>https?://\S{3,80}): offline mode is enabled"),
            sign(
                "Max retries exceeded with url",
                r"host='(?P<host>(?:[\w.-]*\.)?(?:huggingface\.co|hf\.co|hf-mirror\.com))'",
            ),
        ),
        headline=lambda case: (
            "Offline mode is on, and a request to the model hub was made"
            if "offline mode is enabled" in case.lead.message
            else (
                f"A file could not be fetched from {case.given['host'].removeprefix('https://')}"
                if "couldn't connect" in case.lead.message
                else f"{(case.given.get('host') or 'The model hub').removeprefix('https://')} cannot be reached"
            )
            + (", and it is not in the cache" if re.search(r"(?i)cached? |LocalEntry", text_of(case.lead)) else "")
        ),
        why="compute nodes often have no way to the internet; the library asks the hub for each file that an earlier"
        " download had not fetched, and for newer versions of the others",
        next=(
            "fetch the whole repository on a node with internet (huggingface-cli download REPOSITORY), into a cache that the"
            " compute node reads: the same HF_HOME; then HF_HUB_OFFLINE=1 avoids the attempts",
            "or copy the folder and give its path in place of the repository's name; check that name, too: a misspelt"
            " one is in no cache",
            "if this node should have internet: a proxy (HTTPS_PROXY), a mirror (HF_ENDPOINT) or a busy hub; try curl -I"
            " https://huggingface.co",
        ),
        check="`curl -I https://huggingface.co` on that node; `ls $HF_HOME/hub`",
        event=None,
        examples=(
            Example(
                "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the"
                " cached files.\n"
                "Check your internet connection or see how to run the library in offline mode at"
                " 'https://huggingface.co/docs/transformers/installation#offline-mode'.",
                source="huggingface/lerobot#4131",
                says=("could not be fetched from huggingface.co", "HF_HOME"),
            ),
            Example(
                "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub"
                " and we cannot find the requested files in the local cache. Please check your connection and try again or make"
                " sure your Internet connection is on.",
                says=("huggingface-cli download",),
            ),
            Example(
                "requests.exceptions.ConnectionError: Cannot reach https://huggingface.co/api/models/gpt2: offline mode is"
                " enabled. To disable it, please unset the `HF_HUB_OFFLINE` environment variable.",
                says=("Offline mode is on",),
            ),
        ),
        knowledge="huggingface_hub's page on environment variables",
    ),
    Failure(
        id="startup.hub_gated",
        kind=LogClass.STARTUP,
        what="The hub refuses a repository: it is gated or private, or the token is missing.",
        signs=(
            sign("gated repo", r"(?:access(?:ing)? a|is a) gated repo"),
            sign(
                "Cannot access gated repo",
                r"Cannot access gated repo for url https?://[^/\s]+/(?:datasets/)?(?P<repository>[\w.-]+/[\w.-]+)",
            ),
            sign("GatedRepoError"),
            sign("restricted", r"Access to model (?P<repository>\S{3,120}) is restricted"),
            sign(
                "Client Error",
                r"40[13] Client Error(?![\s\S]{0,300}?Repository Not Found)[^\n]{0,200}?huggingface\.co/(?P<repository>[\w.-]+/[\w.-]+)",
            ),
        ),
        headline=lambda case: (
            "The hub refuses access to "
            + (case.given.get("repository") or "a repository")
            + ": gated, private, or a token without the right"
        ),
        why="gated and private repositories need that your account has accepted their terms, and that its token is"
        " sent from this node",
        next=(
            "open the repository's page with your account and accept its terms (some wait for approval)",
            "then give the token: huggingface-cli login, or HF_TOKEN=hf_... in the job's environment (all ranks); a"
            " fine-grained token needs the right to read gated repositories",
        ),
        check="huggingface-cli whoami in the job's environment",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "raise _format(GatedRepoError, message, response) from e\n"
                "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1-66f4b037-1bf3d7d219afbc904ee05694;5601d2c9-8fd8-4ed8-b38d-d8a432e1fa59)\n"
                "\n"
                "Cannot access gated repo for url https://huggingface.co/black-forest-labs/FLUX.1-dev/resolve/main/ae.safetensors.\n"
                "Access to model black-forest-labs/FLUX.1-dev is restricted. You must have access to it and be authenticated to access it. Please log in.",
                source="ToTheBeginning/PuLID#97",
                says=("HF_TOKEN",),
            ),
            Example(
                "Make sure to have access to it at https://huggingface.co/google/gemma-3-4b-pt.\n"
                "403 Client Error. (Request ID: Root=1-6824e511-0a1d60376d4eefac56a9c456;85e8458c-a7d7-452d-b8fe-576bb259b500)\n"
                "\n"
                "Cannot access gated repo for url https://huggingface.co/google/gemma-3-4b-pt/resolve/main/config.json.\n"
                "Access to model google/gemma-3-4b-pt is restricted and you are not in the authorized list. Visit https://huggingface.co/google/gemma-3-4b-pt to ask for access.",
                source="ariG23498/gemma3-object-detection#5",
            ),
            Example(
                "OSError: You are trying to access a gated repo.\n"
                "Make sure to have access to it at https://huggingface.co/meta-llama/Llama-3.1-8B.\n"
                "401 Client Error. (Request ID: Root=1-67)",
                says=("HF_TOKEN", "terms"),
            ),
            Example(
                "huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: Root=1-66)\n"
                "Cannot access gated repo for url"
                " https://huggingface.co/meta-llama/Meta-Llama-3-8B/resolve/main/config.json.",
                says=("gated",),
            ),
        ),
        knowledge="the hub's page on gated models",
    ),
    Failure(
        id="startup.hub_rate_limit",
        kind=LogClass.STARTUP,
        what="The hub refuses further requests for now.",
        signs=(
            sign("Too Many Requests", r"429 Client Error: Too Many Requests|client error \(429 Too Many Requests\)"),
        ),
        headline=lambda case: (
            "The model hub limits the requests (429): too many in a short time"
            if case.printed(r"huggingface|hf\.co")
            else "A server limits the requests (429): too many in a short time"
        ),
        why="many files or many ranks behind one address; without a token the limit is lowest",
        next=(
            "send a token (HF_TOKEN): its limit is higher; wait some minutes, and use fewer workers (--max-workers 1)",
            "download once before the job, and start the ranks with HF_HUB_OFFLINE=1 (or let one rank per node load first)",
        ),
        check="some messages say when to try again",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/datasets/cerebras/SlimPajama-627B/resolve/2d0accdd58c5d5511943ca1f5ff0e3eb5e293543/train/chunk1/example_train_3300.jsonl.zst",
                source="huggingface/datasets#6488",
                says=("429",),
            ),
            Example(
                "Reqwest Error: HTTP status client error (429 Too Many Requests)",
                source="huggingface/datasets#7871",
            ),
            Example(
                "requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://api.example.org/v1/files",
                says=("A server limits",),
            ),
        ),
        knowledge="the hub's page on rate limits",
    ),
    Failure(
        id="startup.engine_memory",
        kind=LogClass.STARTUP,
        what="vLLM wants a larger share of the GPU than is free when it starts.",
        signs=(
            sign(
                "on startup is less than desired GPU memory utilization",
                r"Free memory on device (?:\w+:\d+ )?\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than desired"
                r" GPU memory utilization \((?P<share>[\d.]+), (?P<wanted>[\d.]+) GiB\)",
            ),
        ),
        headline="vLLM wants {wanted} GiB of the GPU, and {free} of its {total} GiB are free",
        why="its share (gpu_memory_utilization) is one of the whole GPU, of which other processes, or this one, already hold a part",
        next=(
            lambda case: (
                f"set gpu_memory_utilization to at most {_free_share(case)} (trl: vllm_gpu_memory_utilization), if the"
                " model fits into that"
            ),
            "or free the GPU: nvidia-smi shows who holds it; end processes left from an earlier run, or give the engine a"
            " GPU of its own",
        ),
        explains=("processes.engine_core",),
        event=EventKind.KNOWN,
        rules_out="the GPU is free when the engine starts",
        examples=(
            Example(
                "[multiproc_executor.py:492] ValueError: Free memory on device (31.44/47.38 GiB) on startup is less than desired GPU memory utilization (0.95, 45.01 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.\n"
                "ERROR 06-30 13:53:19 [core.py:515] EngineCore failed to start.\n"
                "ERROR 06-30 13:53:19 [core.py:515] Traceback (most recent call last):\n"
                'ERROR 06-30 13:53:19 [core.py:515]   File "/usr/local/lib/python3.12/dist-packages/vllm/v1/engine/core.py", line 506, in run_engine_core\n'
                "ERROR 06-30 13:53:19 [core.py:515]     engine_core = EngineCoreProc(*args, **kwargs)\n"
                "ERROR 06-30 13:53:19 [core.py:515]                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
                source="vllm-project/vllm#20305",
                says=("0.66",),
            ),
            Example(
                '(EngineCore_DP0 pid=17374) ERROR 09-28 15:47:24 [core.py:718]   File "/home/user/projects/.venv/lib/python3.10/site-packages/vllm/v1/worker/gpu_worker.py", line 180, in init_device\n'
                "(EngineCore_DP0 pid=17374) ERROR 09-28 15:47:24 [core.py:718]     raise ValueError(\n"
                "(EngineCore_DP0 pid=17374) ERROR 09-28 15:47:24 [core.py:718] ValueError: Free memory on device (3.22/4.0 GiB) on startup is less than desired GPU memory utilization (0.9, 3.6 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.\n"
                "(EngineCore_DP0 pid=17374) Process EngineCore_DP0:\n"
                "(EngineCore_DP0 pid=17374) Traceback (most recent call last):",
                source="vllm-project/vllm#25837",
                says=("3.6 GiB",),
            ),
            Example(
                "(Worker pid=2291010) [Stage-0] ERROR 03-12 08:22:28 [multiproc_executor.py:800] ValueError: Free memory on device cuda:0 (111.99/139.8 GiB) on startup is less than desired GPU memory utilization (0.95, 132.81 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.\n"
                "(Worker pid=2291010) [Stage-0] INFO 03-12 08:22:28 [multiproc_executor.py:749] Parent process exited, terminating worker",
                source="vllm-project/vllm-omni#1842",
                says=("0.8",),
            ),
        ),
        knowledge="vllm/v1/worker: request_memory",
    ),
    Failure(
        id="startup.engine_cache",
        kind=LogClass.STARTUP,
        what="The share of the GPU that an inference engine (vLLM, SGLang) may use leaves too little for its KV cache.",
        signs=(
            sign("No available memory for the cache blocks", r'(?<!")No available memory for the cache blocks'),
            sign(
                "max seq len",
                r"max seq len \((?P<length>\d+)\)(?: is larger than the maximum number of tokens that can be stored in KV cache"
                r" \((?P<room>\d+)\)|[\s\S]{0,160}?larger than the available KV cache memory(?:[\s\S]{0,120}?maximum model"
                r" length is (?P<most>\d+))?)",
            ),
            sign(
                "Please try to increase --mem-fraction-static",
                r"Not enough memory\. Please try to increase --mem-fraction",
            ),
        ),
        headline=_cache_headline,
        why="that share holds the weights, what a forward pass needs and the KV cache; the cache gets what the others leave",
        next=(
            Advice(
                lambda case: (
                    "lower max_model_len to what prompts and answers need"
                    + (f" ({_cache_tokens(case)} fit now)" if _cache_tokens(case) else "")
                ),
                when=lambda case: bool(case.given.get("length")),
            ),
            "raise the share (gpu_memory_utilization; SGLang: mem_fraction_static), if nothing else uses this GPU",
            "or need less: enforce_eager=True, fewer sequences at once (max_num_seqs), a smaller or quantized model, or more"
            " GPUs (tensor_parallel_size)",
        ),
        explains=("processes.engine_core",),
        event=EventKind.KNOWN,
        examples=(
            Example(
                '  File "/workspace/vllm/vllm/v1/core/kv_cache_utils.py", line 970, in get_kv_cache_config\n'
                "    check_enough_kv_cache_memory(vllm_config, kv_cache_spec, available_memory)\n"
                '  File "/workspace/vllm/vllm/v1/core/kv_cache_utils.py", line 588, in check_enough_kv_cache_memory\n'
                "    raise ValueError(\n"
                "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (0.71 GiB). Based on the available memory, the estimated maximum model length is 5632. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
                source="vllm-project/tpu-inference#223",
                says=("5632",),
            ),
            Example(
                "Memory profiling results: total_gpu_memory=23.58GiB initial_memory_usage=15.34GiB peak_torch_memory=17.98GiB memory_usage_post_profile=15.35GiB non_torch_memory=0.35GiB kv_cache_size=2.89GiB gpu_memory_utilization=0.90\n"
                "# GPU blocks: 1478, # CPU blocks: 2048\n"
                "Maximum concurrency for 29000 tokens per request: 0.82x\n"
                "The model's max seq len (29000) is larger than the maximum number of tokens that can be stored in KV cache (23648). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
                source="vllm-project/vllm#10517",
                says=("23648",),
            ),
            Example(
                'vllm-1  | ERROR 11-18 18:07:28 engine.py:366]   File "/usr/local/lib/python3.12/dist-packages/vllm/worker/worker.py", line 493, in raise_if_cache_size_invalid\n'
                'vllm-1  | ERROR 11-18 18:07:28 engine.py:366]     raise ValueError("No available memory for the cache blocks. "\n'
                "vllm-1  | ERROR 11-18 18:07:28 engine.py:366] ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
                source="vllm-project/vllm#10439",
                says=("enforce_eager",),
            ),
            Example(
                "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
                source="sgl-project/sglang#4330",
                says=("mem_fraction_static",),
            ),
        ),
        knowledge="vLLM: conserving memory; vllm-project/vllm#2248",
    ),
    Failure(
        id="startup.hub_not_found",
        kind=LogClass.STARTUP,
        what="A model's name or path exists neither on this machine nor on the hub.",
        signs=(
            sign(
                "is not a local folder", r"OSError: (?P<name>\S{1,160}) is not a local folder and is not a valid model"
            ),
            sign("Repo id must", r"Repo id must [\s\S]{0,160}?'(?P<name>[^'\n]{1,160})'"),
            sign("load tokenizer for", r"Can't load tokenizer for '(?P<name>[^'\n]{1,160})'"),
            sign(
                "Repository Not Found",
                r"Repository Not Found for url: https?://[\w.-]+/(?:api/)?(?:models/|datasets/)?(?P<name>[\w.-]+/[\w-]+"
                r"(?:\.[\w-]+)*)",
            ),
        ),
        headline=lambda case: (
            f"No tokenizer could be loaded from {case.given['name']}"
            if "load tokenizer" in text_of(case.lead)
            else f"{case.given['name']} was taken for a repository of the hub, and is no name of one"
            if "Repo id must" in text_of(case.lead)
            else f"{case.given['name']} is neither a folder on this node nor a repository that the hub shows you"
        ),
        why="a path that does not exist here, or lacks the file, is taken for the name of a repository; a private"
        " repository looks the same without a token",
        next=(
            "check the path on the node that fails: `ls -d` of it there; relative paths count from the folder of the job, and"
            " other nodes may not mount it",
            "check the spelling of the repository; for a private one give the token (HF_TOKEN)",
            "a folder must have config.json (an adapter adapter_config.json) and the tokenizer's files: an interrupted"
            " save or a checkpoint of ZeRO or FSDP does not",
        ),
        check="ls PATH/config.json on the failing node",
        examples=(
            Example(
                "OSError: output_dir/checkpoint-139805 is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'\n"
                "If this is a private repository, make sure to pass a token having permission to this repo with `use_auth_token` or log in with `huggingface-cli login` and pass `use_auth_token=True`.",
                source="liucongg/GPT2-NewsTitle#26",
                says=("output_dir/checkpoint-139805",),
            ),
            Example(
                "OSError: vicuna-13b-v1.3 is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
                source="Jiaxuan-Li/EVCap#8",
                says=("vicuna-13b-v1.3",),
            ),
            Example(
                "OSError: ./output/checkpoint-500 is not a local folder and is not a valid model identifier listed on"
                " 'https://huggingface.co/models'",
                says=("./output/checkpoint-500", "config.json"),
            ),
            Example(
                "huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error. (Request ID: Root=1-66)\n\n"
                "Repository Not Found for url: https://huggingface.co/qwen/Qwen3-7B/resolve/main/config.json.\n"
                "Please make sure you specified the correct `repo_id` and `repo_type`.",
                says=("qwen/Qwen3-7B is neither", "HF_TOKEN"),
            ),
            Example(
                "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name':"
                " '/data/models/llama-7b'. Use `repo_type` argument if needed.",
                says=("path on the node",),
            ),
            Example(
                "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or"
                " 'namespace/repo_name': './out/adapter'. Use `repo_type` argument if needed.",
                says=(
                    "no name of one",
                    "adapter_config.json",
                ),
            ),
        ),
        knowledge="transformers' utils/hub.py; huggingface_hub's validators",
    ),
    Failure(
        id="startup.wandb_key",
        kind=LogClass.STARTUP,
        what="Weights & Biases has no key, and cannot ask for one.",
        signs=(
            sign("api_key not configured", r"api_key not configured \(no-tty\)"),
            sign("wandb login", r"No API key configured"),
        ),
        headline="wandb is not logged in: it finds no API key",
        why="wandb.init stops without a key where there is no terminal to ask for one",
        next=(
            "run `wandb login` once on this machine, or set WANDB_API_KEY in the job's environment",
            "without an account: WANDB_MODE=disabled (or offline); Trainer: report_to='none'",
        ),
        check="`wandb status`; `env | grep WANDB` inside the job",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                "wandb.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])",
                source="mguti97/PnLCalib#6",
                says=("WANDB_API_KEY", "WANDB_MODE"),
            ),
        ),
        knowledge="W&B's documentation of environment variables",
    ),
    Failure(
        id="startup.wandb_unreachable",
        kind=LogClass.STARTUP,
        what="Weights & Biases could not be reached, or refuses the run.",
        signs=(
            sign("CommError", r"wandb\.errors\.\w*\.?CommError(?:: (?P<reason>[^\n]{3,120}))?"),
            sign("CommError", r"CommError: (?P<reason>Run initialization has timed out[^\n]{0,60})"),
            sign(
                "ERROR Run initialization",
                r"wandb: ERROR (?P<reason>Run initialization has timed out after [\d.]+ sec)",
            ),
        ),
        headline="wandb could not start the run",
        why=lambda case: (
            f"it says: {case.given['reason']}" if case.given.get("reason") else "wandb.init waits for its server"
        ),
        next=(
            Advice(
                "check entity and project (and WANDB_BASE_URL): the server answered, and does not know them or does not let this key"
                " use them; WANDB_MODE=offline meanwhile",
                when=_is_refused_by_wandb,
            ),
            "WANDB_MODE=offline for nodes without internet, and `wandb sync` the folder later; or WANDB_MODE=disabled",
            "start it on rank 0 only, and give it more time: wandb.init(settings=wandb.Settings(init_timeout=300))",
            "permission denied: check entity and project, and that the key belongs to that team",
        ),
        check="curl -I https://api.wandb.ai on that node",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "INFO: using FP16 training!\n"
                "INFO: using cudnn benchmark!\n"
                "Tune text features as well!\n"
                "wandb: Using wandb-core as the SDK backend.  Please refer to https://wandb.me/wandb-core for more information.\n"
                "wandb: W&B API key is configured. Use `wandb login --relogin` to force relogin\n"
                "wandb: Network error (SSLError), entering retry loop.\n"
                "wandb: ERROR Run initialization has timed out after 90.0 sec. Please try increasing the timeout with the `init_timeout` setting: `wandb.init(settings=wandb.Settings(init_timeout=120))`.\n"
                "Traceback (most recent call last):\n"
                '  File "/data1/user/EventCLIP-main/train.py", line 149, in <module>\n'
                "    main(params)\n"
                '  File "/data1/user/EventCLIP-main/train.py", line 77, in main',
                source="Wuziyi616/EventCLIP#8",
            ),
            Example(
                "wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec. Please try increasing the timeout with the `init_timeout` setting: `wandb.init(settings=wandb.Settings(init_timeout=120))`.",
                source="GAIR-NLP/DeepResearcher#7",
                says=("WANDB_MODE=offline",),
            ),
        ),
        knowledge="W&B's documentation of wandb.init",
    ),
)


ENTRIES = (
    *_TEXTS,
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
        "ranks and nodes find each other through a store that one of them opens, and nobody answers at its address",
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
        "NCCL or gloo found no usable network interface, most often because none has the given name.",
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
