"""Failures of networks: names, interfaces, InfiniBand and sockets."""

import re

from analyzers.case.facts import EventKind, LogClass
from analyzers.case.hypothesis import Case, Tier
from analyzers.case.wording import shortened
from analyzers.failures.entry import Advice, Example, Failure, sign, text_of

_COMPLETION = (
    r"Got completion from peer (?P<peer>[\w.:]+)<\d+> with (?:status=|error )(?P<status>{})\b"
    r"(?:[^\n]{{0,160}}? vendor err (?P<vendor>\d+))?(?:[^\n]{{0,160}}? hca (?P<hca>\w+))?"
)
_STATUS = {
    "4": "local protection error",
    "9": "remote invalid request",
    "10": "remote access error",
    "11": "remote operation error",
    "13": "receiver not ready",
}
"""{code of `ibv_wc_status`: its meaning}."""


def _is_refused(case: Case) -> bool:
    """Return whether the log says, around a failure of NCCL's shared memory, that the permission lacks."""
    return case.printed("Permission denied")


def _from_device(case: Case) -> str:
    """Return the local RDMA device of an InfiniBand error, as `mlx5_10 `; empty if the text does not name it."""
    return f"{case.given['hca']} " if case.given.get("hca") else ""


def _is_local(address: str) -> bool:
    """Return whether other machines cannot reach an address: a loopback, a bridge of Docker, or link-local."""
    return re.match(r"(?:127\.|172\.1[789]\.|169\.254\.|192\.168\.122\.|fe80|::1|\[::1)", address) is not None


def _for_socket(case: Case) -> str:
    """Return what to do about a connection of NCCL's sockets that failed, by its address and error."""
    address, reason = case.given["peer"], case.given["reason"].lower()
    if _is_local(address):
        return (
            f"{address} is an address that other nodes cannot reach (loopback, Docker's bridge or link-local): with several nodes set"
            " NCCL_SOCKET_IFNAME to the interface of the cluster's network on all nodes (`ip -br addr`), such as eth0 or"
            " bond0; ^docker0,lo excludes those two"
        )
    if "abort" in reason:
        return (
            f"nothing answered at {address} after several tries: read the log of the rank there first (it may have ended);"
            " then open all ports between the nodes (NCCL uses random ones), or set NCCL_SOCKET_IFNAME to an interface of the"
            " network that all nodes share"
        )
    if "refused" in reason:
        return (
            f"nothing listens at {address}: read the log of the rank there first, whose process had probably ended; if it"
            " still ran, set NCCL_SOCKET_IFNAME to the network that all nodes share"
        )
    return (
        f"make {address} reachable from here: open all ports between the nodes (NCCL uses random ones; `ufw status`,"
        " `iptables -L`, security groups), or set NCCL_SOCKET_IFNAME to an interface of the network that all nodes share"
    )


_IB_PATH = (
    "check the path between these two ports: `ibstat` and `show_gids` on both nodes (port active, same subnet or VLAN),"
    " then `ib_write_bw` between them over the named device"
)
_GID = (
    "RoCE: set NCCL_IB_GID_INDEX to the index of the routable RoCE v2 address on all nodes (often 3; `show_gids`), above"
    " all if the nodes are under different switches"
)


ENTRIES: tuple[Failure, ...] = (
    Failure(
        id="network.ib_retries",
        kind=LogClass.NETWORK,
        what="An InfiniBand or RoCE adapter got no answer from its peer until its retries were used up.",
        signs=(
            sign("Got completion from peer", _COMPLETION.format("12")),
            sign(
                "ransport retry count exceeded", r"[Tt]ransport retry count exceeded(?: on (?P<hca>[\w:]+))?(?P<peer>)"
            ),
        ),
        headline=lambda case: (
            f"InfiniBand/RoCE: {case.given['hca'] or 'an adapter'} got no answer from {case.given['peer']} (status 12, retries"
            " used up)"
            if case.given["peer"]
            else f"InfiniBand/RoCE: {case.given['hca'] or 'an adapter'} got no answer from another node (retries used up)"
        ),
        why="the adapter sent again until its retry counter was exceeded (IBV_WC_RETRY_EXC_ERR): the packets, or their"
        " acknowledgements, do not arrive; status 5 afterwards only says that queued requests were flushed",
        next=(
            _IB_PATH,
            Advice(_GID, when=lambda case: bool(case.given["peer"])),
            Advice(
                "MPI over UCX: set UCX_IB_GID_INDEX for RoCE, or do without the adapter: UCX_TLS=tcp,cuda (or mpirun --mca pml ob1"
                " --mca btl tcp,self)",
                when=lambda case: not case.given["peer"],
            ),
            "if it fails only now and then: NCCL_IB_TIMEOUT=22 and NCCL_IB_RETRY_CNT=7, and look for errors of links,"
            " cables and the switch (PFC and ECN for RoCE); adapters of different rails that cannot reach each other:"
            " NCCL_CROSS_NIC=0",
            "look also into the log of the ranks at the other end: a process that had ended there no longer answers",
        ),
        check="NCCL_DEBUG=INFO prints which adapter and GID each connection uses",
        rules_out="the other end's own error stands earlier in its log",
        tier=Tier.NETWORK,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "[ksgpu-v-051:51920:0:52950] ib_mlx5_log.c:139  Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15 vend"
                " 0x85 hw_synd 0/0)",
                source="horovod/horovod#1390",
                says=("mlx5_0:1", "UCX_IB_GID_INDEX"),
            ),
            Example(
                "node-g2:353236:353423 [6] transport/net_ib.cc:2244 NCCL WARN NET/IB: Got completion from peer"
                " 192.168.3.5<53908> with status=12 opcode=129 len=1048576 vendor err 129 (Recv) localGid"
                " ::ffff:192.168.6.3 remoteGids::ffff:192.168.6.5 hca mlx5_10",
                source="NVIDIA/nccl#1698",
                says=("mlx5_10", "192.168.3.5", "NCCL_IB_GID_INDEX", "NCCL_IB_RETRY_CNT"),
            ),
            Example(
                "NCCL WARN NET/IB : Got completion from peer 192.168.17.147<38560> with error 12, opcode 0, len 0, vendor"
                " err 129",
                source="pytorch/pytorch#81628",
                says=("192.168.17.147", "NCCL_IB_GID_INDEX"),
            ),
        ),
        near_misses=(
            "NCCL WARN NET/IB : Got completion from peer 192.168.17.147<38560> with error 5, opcode 0, len 0, vendor err"
            " 249",
        ),
        knowledge="ibv_poll_cq(3); NCCL's documentation of its environment variables",
    ),
    Failure(
        id="network.ib_refused_access",
        kind=LogClass.NETWORK,
        what="An RDMA request was refused: the memory is not registered as the other side expects, or nobody waits.",
        signs=(sign("Got completion from peer", _COMPLETION.format("4|9|10|11|13")),),
        headline=lambda case: (
            f"InfiniBand/RoCE: {_from_device(case)}{_STATUS[case.given['status']]} with {case.given['peer']} (status"
            f" {case.given['status']})"
        ),
        why="the adapters reached each other, and the request itself failed: most often memory of the GPU that the"
        " adapter may not access (GPUDirect, IOMMU, ACS), or a peer that had gone on to something else",
        next=(
            "run once with NCCL_NET_GDR_LEVEL=0 (no GPUDirect): if it works, check nvidia_peermem or dma-buf (`lsmod`), and"
            " that ACS and the IOMMU are off on bare metal",
            "look for the first error of the ranks at the other end, and for ranks that call different collectives",
            "update the firmware and driver of the adapter, and NCCL",
        ),
        check="`dmesg` for lines of mlx5_core and of the IOMMU at that time",
        tier=Tier.NETWORK,
        examples=(
            Example(
                "node-3:181:420 [2] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.4.7<41212>"
                " with status=10 opcode=0 len=0 vendor err 136 (Send) hca mlx5_2",
                says=("remote access error", "NCCL_NET_GDR_LEVEL"),
            ),
        ),
        knowledge="ibv_poll_cq(3); NVIDIA's documentation of GPUDirect RDMA",
    ),
    Failure(
        id="network.ib_queue_pair",
        kind=LogClass.NETWORK,
        what="An InfiniBand or RoCE connection could not be set up.",
        signs=(
            sign(
                "ibv_modify_qp failed",
                r"ibv_modify_qp failed with (?:error )?(?:(?P<code>\d+) )?(?P<reason>[A-Z][^\n,]{3,60}?)"
                r"(?:, on dev (?P<hca>\w+)|,|$)",
            ),
        ),
        headline=lambda case: f"InfiniBand/RoCE: {_from_device(case)}could not connect: {case.given['reason']}",
        why=lambda case: (
            "most often the other adapter does not answer: the two networks are not connected, or the wrong address"
            " (GID) is used"
            if re.search("timed out|route|unreachable", case.given["reason"])
            else "the adapter refuses the settings of the connection: most often the GID, its type or the MTU do not fit"
            " the port"
        ),
        next=(
            Advice(
                "NCCL_CROSS_NIC=0, if each adapter reaches only those of its own rail (all-reduce works and other collectives"
                " do not)",
                when=lambda case: "timed out" in case.given["reason"],
            ),
            _GID,
            _IB_PATH,
            "use only the adapters of the compute network: NCCL_IB_HCA=mlx5_0,mlx5_1 (without those for storage and"
            " management)",
            "to see whether the rest works: NCCL_IB_DISABLE=1 (slow)",
        ),
        check="NCCL_DEBUG=INFO names the adapter, port and GID of both ends",
        event=EventKind.KNOWN,
        tier=Tier.NETWORK,
        examples=(
            Example(
                "[2026-03-13 22:26:02] host-01:4120:4300 [5] ibvwrap.c:262 NCCL WARN Call to ibv_modify_qp failed with 110"
                " Connection timed out, on dev mlx5_3:1, curr state INIT, next state RTR, local GID index 3",
                source="NVIDIA/nccl#2013",
                says=("mlx5_3", "Connection timed out", "NCCL_CROSS_NIC=0"),
            ),
            Example(
                "ai-worker01:5771:5771 [0] ibvwrap.c:160 NCCL WARN Call to ibv_modify_qp failed with error Connection timed"
                " out",
                source="NVIDIA/nccl-tests#227",
                says=("Connection timed out", "NCCL_IB_GID_INDEX"),
            ),
            Example(
                "gpu-2:3411:3800 [0] misc/ibvwrap.cc:199 NCCL WARN Call to ibv_modify_qp failed with 22 Invalid argument, on"
                " dev mlx5_4:1, curr state INIT, next state RTR, local GID index 0",
                says=("mlx5_4", "Invalid argument"),
            ),
        ),
        knowledge="ibv_modify_qp(3); NCCL's troubleshooting page",
    ),
    Failure(
        id="network.ib_locked_memory",
        kind=LogClass.NETWORK,
        what="The adapter could not register memory, most often because the limit of locked memory is too low.",
        signs=(
            sign(
                "ibv_",
                r"ibv_(?:reg_mr\w*|create_cq|create_qp)[^\n]{0,40} failed with error (?:12 )?Cannot allocate memory",
            ),
        ),
        headline="RDMA could not register memory: most often the limit of locked memory (ulimit -l)",
        why="memory for RDMA is pinned, and counts against RLIMIT_MEMLOCK of the process; with an unlimited one the"
        " host's memory or what the adapter can map is used up",
        next=(
            "raise the limit: ulimit -l unlimited (docker run --ulimit memlock=-1; Slurm:"
            " PropagateResourceLimitsExcept=MEMLOCK and LimitMEMLOCK=infinity for slurmd; Kubernetes: capability"
            " IPC_LOCK)",
            "or NCCL_IB_DISABLE=1 for one run, to see whether the rest works",
        ),
        check="`ulimit -l` inside the job must say unlimited",
        event=EventKind.KNOWN,
        tier=Tier.OWN_FAILURE,
        explains=("network.*", "exceptions.*"),
        examples=(
            Example(
                "node-1:2201:2307 [1] misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot"
                " allocate memory",
                source="NVIDIA/nccl-tests#206",
                says=("ulimit -l unlimited", "IPC_LOCK"),
            ),
        ),
        knowledge="NCCL's troubleshooting page; setrlimit(2)",
    ),
    Failure(
        id="network.nccl_shared_memory",
        kind=LogClass.CRASHED,
        what="NCCL could not make its buffers in /dev/shm, most often because it is full or too small.",
        signs=(
            sign("shm/nccl", r"dev/shm/nccl-[\s\S]{0,120}?No space left on device"),
            sign(
                "shared memory segment", r"[Ee]rror while (?:creating|attaching to) shared memory segment \S{0,20}nccl-"
            ),
            sign("posix_fallocate", r"NCCL WARN Call to posix_fallocate failed"),
        ),
        headline=lambda case: (
            "NCCL may not write its buffers to /dev/shm: permission denied"
            if _is_refused(case)
            else "NCCL's buffers do not fit into /dev/shm, which is full or too small (containers: 64 MiB)"
            if case.printed("No space left")
            else "NCCL could not make its buffers in /dev/shm"
        ),
        why="ranks of one node exchange data through shared memory; lost connections of other ranks can follow from it",
        next=(
            Advice(
                "make it writable for all users, as it usually is: chmod 1777 /dev/shm (ls -ld /dev/shm), or remove the files of"
                " another user there",
                _is_refused,
            ),
            Advice(
                "in a container, give it more: docker run --shm-size=16g (or --ipc=host); Kubernetes: an emptyDir with"
                " medium: Memory mounted at /dev/shm",
                lambda case: not _is_refused(case),
            ),
            "remove what an earlier run has left there: `ls -la /dev/shm`, files nccl-* of dead processes",
            "or NCCL_SHM_DISABLE=1 (slower)",
        ),
        check="`df -h /dev/shm` in the container",
        rules_out="the disk of the node: /dev/shm is memory",
        explains=("network.*", "collectives.*", "exceptions.*", "data.*"),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "[2026-04-22 21:34:20] pod-t4-4-workflow:202016:202235 [0] misc/shmutils.cc:88 NCCL WARN Error: failed to"
                " extend /dev/shm/nccl-WU88OE to 9637892 bytes, error: No space left on device (28)",
                source="pytorch/ci-infra#490",
                says=("emptyDir", "--shm-size"),
            ),
        ),
        near_misses=(
            "OSError: [Errno 28] No space left on device: '/checkpoints/step_100.pt'",
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        ),
        knowledge="NCCL's troubleshooting page: shared memory",
    ),
    Failure(
        id="network.gloo_loopback",
        kind=LogClass.NETWORK,
        what="Gloo uses the loopback address, most often because the host name resolves to no address of this machine.",
        signs=(
            sign("Unable to resolve hostname to a", r"Unable to resolve hostname to a \(local\) address"),
            sign("connectFullMesh failed", r"connectFullMesh failed[\s\S]{0,400}?(?:127\.0\.0\.1|\[::1\]|localhost)"),
        ),
        headline=lambda case: (
            "Gloo's connections over the loopback address 127.0.0.1 failed"
            if "connectFullMesh" in text_of(case.lead)
            else "Gloo uses the loopback address 127.0.0.1, which ranks on other nodes cannot reach"
        ),
        why="where the host name of this machine or pod resolves to no address of its own, Gloo falls back to"
        " loopback, which other nodes cannot reach; on a single node the other rank has most often ended",
        next=(
            "set GLOO_SOCKET_IFNAME (and NCCL_SOCKET_IFNAME) on every node to the interface of the network between the nodes"
            " (`ip -br addr`), such as eth0",
            "or correct the name: /etc/hosts or DNS must give `hostname` the address of that interface, not 127.0.1.1",
        ),
        check="`getent hosts $(hostname)` on each node",
        rules_out="all ranks are on one node",
        event=EventKind.KNOWN,
        explains=("exceptions.*", "network.*"),
        examples=(
            Example(
                "[rank8] Warning: Unable to resolve hostname to a (local) address. Using the loopback\n"
                "        address as fallback. Manually set the network interface with GLOO_SOCKET_IFNAME\n"
                "[rank8] Gloo connectFullMesh failed ... timed out connecting: SO_ERROR: Connection refused,\n"
                "        remote=[127.0.0.1]:14215",
                source="aws-samples/aws-do-eks#50",
                says=("GLOO_SOCKET_IFNAME", "127.0.0.1"),
            ),
        ),
        knowledge="torch/csrc/distributed/c10d/ProcessGroupGloo.cpp; aws-samples/aws-do-eks#50",
    ),
    Failure(
        id="network.interface_missing",
        kind=LogClass.STARTUP,
        what="The network interface that a variable names does not exist on this node.",
        signs=(
            sign("Unable to find address for", r"Unable to find address for: (?P<name>\S+)"),
            sign("Unable to find interface for", r"Unable to find interface for: (?P<name>\S+)"),
            sign("no socket interface found", r"Bootstrap ?: no socket interface found(?P<name>)"),
            sign("is neither AF_INET", r"connecting to address +(?:\S+ )?with family \d+ is neither AF_INET(?P<name>)"),
        ),
        headline=lambda case: (
            f"There is no usable network interface {case.given['name']} on this node"
            if case.given["name"]
            else "NCCL found no network interface that it may use"
        ),
        why=lambda case: (
            "most often GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names an interface that this node does not have, or"
            " that has no address"
            + ("" if case.given["name"] else "; without these, a node that has only lo and docker gives NCCL none")
        ),
        next=(
            "set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to an interface that each node has (`ip -br addr`); names may"
            " differ between nodes: a prefix such as eth or en, or a list, works for NCCL",
            "or unset both, so that they are chosen; on a single machine without a network NCCL_SOCKET_IFNAME=lo works",
        ),
        check="`ip -br addr` and `env | grep IFNAME` on each node",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "/workspace/test.py", line 5, in <module>\n'
                "    dist.init_process_group(backend='gloo')\n"
                '  File "/usr/local/python/lib/python3.8/site-packages/torch/distributed/distributed_c10d.py", line 602, in init_process_group\n'
                "    default_pg = _new_process_group_helper(\n"
                '  File "/usr/local/python/lib/python3.8/site-packages/torch/distributed/distributed_c10d.py", line 703, in _new_process_group_helper\n'
                "    pg = ProcessGroupGloo(prefix_store, rank, world_size, timeout=timeout)\n"
                "RuntimeError: [enforce fail at /home/user/pytorch/third_party/gloo/gloo/transport/tcp/device.cc:83] ifa != nullptr. Unable to find address for: bond1",
                source="NVIDIA/Megatron-LM#436",
                says=("bond1",),
            ),
            Example(
                "=> merge config from GrootV/classification/config/grootv_t_1k_224.yaml\n"
                "RANK and WORLD_SIZE in environ: 0/1\n"
                "Traceback (most recent call last):\n"
                '  File "/home/user/MambaTree-main/GrootV/classification/main.py", line 627, in <module>\n'
                "    torch.distributed.barrier()\n"
                '  File "/home/user/anaconda3/envs/grootv/lib/python3.9/site-packages/torch/distributed/distributed_c10d.py", line 3145, in barrier\n'
                "    work = default_pg.barrier(opts=opts)\n"
                "RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1201, internal error, NCCL version 2.14.3\n"
                "ncclInternalError: Internal check failed.\n"
                "Last error:\n"
                "Bootstrap : no socket interface found",
                source="EasonXiao-888/MambaTree#14",
                says=("NCCL_SOCKET_IFNAME=lo",),
            ),
            Example(
                "[trainer3]:node-1:1958:1958 [3] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth2\n"
                "[trainer3]:node-1:1958:1958 [3] NCCL INFO NCCL_SOCKET_IFNAME set to eth2\n"
                "[trainer0|0]:ncclInternalError: Internal check failed.\n"
                "[trainer0|0]:Last error:\n"
                "[trainer0|0]:ncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)",
                source="NVIDIA/nccl#1837",
                says=("NCCL_SOCKET_IFNAME",),
            ),
        ),
        knowledge="NCCL's and PyTorch's documentation of the variables",
    ),
    Failure(
        id="network.nccl_internal",
        kind=LogClass.NETWORK,
        what="NCCL reports an internal error; its last line says where.",
        signs=(
            sign(
                "ncclInternalError",
                r"ncclInternalError: Internal check failed\.?\s*(?:\[?\w*\|?\d*\]?:?\s*Last error:\s*(?P<last>[^\n]{0,200}))?",
            ),
        ),
        headline=lambda case: (
            f"NCCL failed with an internal error: {shortened(case.given['last'].strip())}"
            if case.given.get("last", "").strip()
            else "NCCL failed with an internal error, and gives no reason here"
        ),
        why="an internal check of NCCL, its network plugin or the memory that ranks share failed; the watchdog's abort follows from it",
        next=(
            "read the line after `Last error:`, and run once with NCCL_DEBUG=WARN: it prints the check that failed",
            "if it names a network plugin or a transport, try without it (NCCL_NET_PLUGIN=none, NCCL_NET=Socket, NCCL_IB_DISABLE=1), one at a"
            " time; then update NCCL or the plugin, so that both fit",
        ),
        explains=("processes.watchdog_abort",),
        tier=Tier.NETWORK,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "[rank0]:[E ProcessGroupNCCL.cpp:1335] [PG 0 Rank 0] NCCL watchdog thread terminated with exception: NCCL error: internal"
                " error - please report this issue to the NCCL developers, NCCL version 2.21.5\n"
                "ncclInternalError: Internal check failed.\nLast error:\n"
                "    @     0x79139d98e78c  ncclNetPluginShim_test()\n"
                "terminate called after throwing an instance of 'c10::DistBackendError'",
                says=("internal error", "NCCL_DEBUG=WARN"),
            ),
        ),
        knowledge="NCCL: ncclInternalError; PyTorch: ProcessGroupNCCL",
    ),
    Failure(
        id="network.nccl_socket",
        kind=LogClass.NETWORK,
        what="NCCL could not open a connection to a rank on another node.",
        signs=(
            sign(
                "Connect to",
                r"(?:socketStartConnect|socketPollConnect|socketTryConnect)?:? ?Connect to (?P<peer>[\w.:%]+)<\d+> failed"
                r" ?: (?P<reason>[A-Z][\w ]{3,60})",
            ),
            sign(
                "socketPollConnect",
                r"socketPollConnect[^\n]{0,20}?[Cc]onnect to (?P<peer>[\w.:%]+)<\d+> returned (?:\d+\()?(?P<reason>[A-Z][\w ]{3,60})",
            ),
        ),
        headline="NCCL cannot connect to {peer}: {reason}",
        why=lambda case: (
            "the ranks exchanged this address, which leads to another node only where both interfaces are on one link"
            if case.given["peer"].lower().startswith("fe80")
            else "the ranks exchanged this address, which other machines cannot reach"
            if _is_local(case.given["peer"])
            else "most often a firewall, or an interface that the nodes do not share, lies between them; else the process"
            " at the other end is gone"
            if "refused" not in case.given["reason"].lower()
            else "the address is reachable, and no process accepts connections at that port"
        ),
        next=(
            _for_socket,
            Advice(
                "`nc -zv` to that address from this node tests it; NCCL_DEBUG=INFO shows which interface each node chose",
            ),
        ),
        check="NCCL_DEBUG=INFO prints `NET/Socket : Using [0]interface:address` on each node",
        event=EventKind.KNOWN,
        tier=Tier.NETWORK,
        explains=("exceptions.*",),
        examples=(
            Example(
                "node-1:4120:4300 [3] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 172.17.0.2<41235> failed :"
                " No route to host",
                says=("172.17.0.2", "^docker0,lo"),
            ),
            Example(
                "h100-15:139:1092 [7] socket.c:485 NCCL WARN socketStartConnect: Connect to 10.0.0.82<38455> failed : Software"
                " caused connection abort",
                source="sgl-project/sglang#5594",
                says=("10.0.0.82", "open all ports"),
            ),
            Example(
                "node5:240:240 [6] misc/socket.cc:533 NCCL WARN socketPollConnect: Connect to 10.0.0.4<56849> returned 113(No"
                " route to host) errno 115(Operation now in progress)",
                source="sgl-project/sglang#3820",
                says=("No route to host", "firewall"),
            ),
        ),
        knowledge="NCCL's misc/socket.cc",
    ),
    Failure(
        id="network.nccl_connect",
        kind=LogClass.NETWORK,
        what="An older NCCL could not open a connection to another rank, and does not print its address.",
        signs=(sign("Call to connect failed", r"Call to connect failed ?: (?P<reason>[A-Z][\w ]{3,60})"),),
        headline="NCCL cannot connect to another rank: {reason}",
        why=lambda case: (
            "no process listens there: the other rank had probably ended"
            if "refused" in case.given["reason"]
            else "most often a firewall, or an interface that the nodes do not share, lies between the ranks"
        ),
        next=(
            "read the logs of the other ranks first; one may have ended",
            "set NCCL_SOCKET_IFNAME to the interface of the network that all nodes share (`ip -br addr`; ^docker0,lo excludes two that they"
            " do not), and open all ports between the nodes (NCCL uses random ones)",
            "NCCL_DEBUG=INFO shows the interface that each node chose",
        ),
        check="NCCL_DEBUG=INFO prints `NET/Socket : Using [0]interface:address` on each node",
        event=EventKind.KNOWN,
        tier=Tier.NETWORK,
        explains=("exceptions.*",),
        examples=(
            Example(
                "gpu-1:18553:18611 [0] include/socket.h:360 WARN Call to connect failed : Connection timed out",
                says=("Connection timed out", "NCCL_SOCKET_IFNAME"),
            ),
            Example(
                "node1:51:82 [0] include/socket.h:361 NCCL WARN Call to connect failed : Connection refused",
                says=("had probably ended",),
            ),
        ),
        knowledge="NCCL 2.4: include/socket.h",
    ),
    Failure(
        id="network.peer_access",
        kind=LogClass.CRASHED,
        what="Two GPUs of one node cannot access each other's memory, and NCCL tries it.",
        signs=(
            sign("peer access is not supported between these two devices"),
            sign("peer mapping resources exhausted"),
        ),
        headline=lambda case: (
            "CUDA cannot map more GPUs as peers of one process"
            if "exhausted" in text_of(case.lead)
            else "Two GPUs of this node cannot access each other's memory (peer-to-peer)"
        ),
        why=lambda case: (
            "a process can have about eight peers"
            if "exhausted" in text_of(case.lead)
            else "the driver, the PCIe topology, virtualisation or consumer cards do not allow it"
        ),
        next=(
            Advice(
                "use fewer GPUs in one process (CUDA_VISIBLE_DEVICES), or one process for each GPU (DDP in place of DataParallel)",
                when=lambda case: "exhausted" in text_of(case.lead),
            ),
            Advice(
                "turn off the engine's own all-reduce (--disable-custom-all-reduce of vLLM and SGLang), which needs peer access",
                when=lambda case: case.printed(r"custom_all_reduce"),
            ),
            "NCCL_P2P_DISABLE=1: NCCL then goes through shared memory of the host",
            Advice(
                "update the driver, and disable ACS and the IOMMU on bare metal, if peer access should work",
                when=lambda case: "exhausted" not in text_of(case.lead),
            ),
        ),
        check="`nvidia-smi topo -p2p r` shows which pairs can",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "    return self._op(*args, **(kwargs or {}))\n"
                "           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
                "RuntimeError: CUDA error: peer access is not supported between these two devices\n"
                "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n"
                "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
                "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
                source="ai-dynamo/dynamo#1229",
            ),
            Example(
                "(pid=909608) z-pc:909608:910337 [0] NCCL INFO Channel 00 : 0[2d000] -> 1[2e000] via P2P/IPC\n"
                "(pid=909608) \n"
                "(pid=909608) z-pc:909608:910337 [0] transport/p2p.cc:238 NCCL WARN failed to open CUDA IPC handle : 217 peer access is not supported between these two devices\n"
                "(pid=909608) z-pc:909608:910337 [0] NCCL INFO transport.cc:68 -> 1\n"
                "(pid=909597) RuntimeError: NCCL error in: /opt/conda/conda-bld/pytorch_1603729062494/work/torch/lib/c10d/ProcessGroupNCCL.cpp:784, unhandled cuda error, NCCL version 2.7.8",
                source="ray-project/ray_lightning#24",
            ),
            Example(
                "[19:01:01 TP0] Init nccl begin.\n"
                "[19:01:01 TP1] Init nccl begin.\n"
                "NCCL version 2.20.5+cuda12.4\n"
                "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:307 'peer access is not supported between these two devices'\n"
                "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:307 'peer access is not supported between these two devices'\n"
                "[rank1]:[W924 19:01:01.260102563 CudaIPCTypes.cpp:16] Producer process has been terminated before all shared CUDA tensors released. See Note [Sharing CUDA tensors]",
                source="sgl-project/sglang#1509",
                says=("--disable-custom-all-reduce",),
            ),
            Example(
                "RuntimeError: cuda runtime error (60) : peer mapping resources exhausted at /opt/conda/conda-bld/pytorch_1556653114079/work/aten/src/THC/THCGeneral.cpp:164",
                source="pytorch/pytorch#25019",
                says=("fewer GPUs",),
            ),
        ),
        knowledge="NCCL's troubleshooting page: GPU-to-GPU communication",
    ),
    Failure(
        id="network.message_truncated",
        kind=LogClass.MISMATCH,
        what="A rank received a message of another size than it expected.",
        signs=(
            sign(
                "essage truncated",
                r"essage truncated : receiv(?:ed|ing) (?P<got>\d+) bytes instead of (?P<expected>\d+)",
            ),
        ),
        headline="A rank received {got} bytes where it expected {expected}",
        why="most often the two ends ran different collectives or sizes, have different settings or versions of NCCL,"
        " or connect to a process of another job at the same address",
        next=(
            "run with TORCH_DISTRIBUTED_DEBUG=DETAIL, which names the rank whose call differs",
            "compare NCCL's version and NCCL_* variables on all nodes (`env | grep NCCL`); if NCCL_PROTO=SIMPLE on all of them helps, they"
            " differ in these",
            "give each job its own MASTER_PORT, and end processes of earlier runs",
        ),
        check="NCCL_DEBUG=INFO prints version and settings of each rank",
        event=EventKind.KNOWN,
        tier=Tier.NETWORK,
        examples=(
            Example(
                "node-10:74737:75914 [1] transport/net_socket.cc:488 NCCL WARN NET/Socket : peer 10.0.5.194<41988> message truncated : receiving 4 bytes instead of 2. If you believe your socket network is in healthy state,           there may be a mismatch in collective sizes or environment settings (e.g. NCCL_PROTO, NCCL_ALGO) between ranks\n"
                "\n"
                "node-10:74737:74737 [1] init.cc:290 NCCL WARN Attempt to use communicator before the previous operation returned ncclSuccess\n"
                "[rank9]: Traceback (most recent call last):\n"
                '[rank9]:   File "/sharedata/code/zbpp_v010/examples/../pretrain_gpt.py", line 301, in <module>\n'
                "[rank9]:     pretrain(train_valid_test_datasets_provider,\n"
                '[rank9]:   File "/sharedata/code/zbpp_v010/megatron/training.py", line 199, in pretrain\n'
                "[rank9]:     iteration = train(forward_step_func,",
                source="sail-sg/zero-bubble-pipeline-parallelism#60",
                says=(
                    "4 bytes",
                    "NCCL_PROTO",
                ),
            ),
            Example(
                "Message truncated : received 256 bytes instead of 4",
                source="NVIDIA/nccl#1176",
                says=("256",),
            ),
        ),
        knowledge="NCCL's bootstrap.cc",
    ),
    Failure(
        id="network.nccl_wrapper",
        kind=LogClass.NETWORK,
        what="An exception that only says that NCCL failed.",
        signs=(
            sign(
                "NCCL Error", r"NCCL Error (?P<code>\d+): (?P<what>unhandled \w+ error|internal error|remote process)"
            ),
        ),
        headline="NCCL failed ({what}), and this message does not say why",
        why="the exception only passes NCCL's result on; its reason is in a line with NCCL WARN, which NCCL_DEBUG prints",
        next=(
            "run again with NCCL_DEBUG=INFO: the first line with `NCCL WARN` names the reason (network, shared memory, driver)",
            "read the lines before this message, and the logs of the other ranks: another failure may have come first",
        ),
        check="grep 'NCCL WARN' in the logs of all ranks",
        tier=Tier.VAGUE,
        examples=(
            Example(
                "RuntimeError: NCCL Error 2: unhandled system error (run with NCCL_DEBUG=INFO for details)",
                source="NVIDIA/nccl#2013",
                says=("NCCL_DEBUG=INFO",),
            ),
        ),
        knowledge="NCCL's documentation of ncclResult_t",
    ),
)
