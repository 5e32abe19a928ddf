"""Failures of devices, links and networks."""

import re

from analyzers.case.facts import EventKind, LogClass, Reason
from analyzers.case.hypothesis import Case, Tier
from analyzers.case.wording import at_step, first_with, place, quoted, who
from analyzers.failures.entry import Advice, Example, Failure, Sign, sign, text_of
from analyzers.words import rank_names, size


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
    return f"{device} reported Xid {facts.xid}{at_step(lead)}"


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
        named = f"; its address is {address}" if address else ""
        return f"the driver no longer reaches the GPU over PCIe; the training program is not the cause{named}"
    if case.reason is Reason.XID_SOFTWARE:
        return ""
    return (
        "such a message comes from the driver, the network or the scheduler; the training program is seldom its cause"
    )


# Xids: the error numbers of NVIDIA's driver. What each means is in NVIDIA's catalogue of Xids.

_XID_NAMES = {
    13: "an exception of a kernel",
    31: "an illegal address (MMU fault)",
    43: "a GPU that stopped processing",
    48: "an uncorrectable memory error (double-bit ECC)",
    61: "a breakpoint of an internal microcontroller",
    62: "a halt of an internal microcontroller",
    63: "memory that is to be remapped",
    64: "memory that could not be remapped",
    74: "an NVLink error",
    79: "a GPU that fell off the bus",
    94: "a contained ECC error",
    95: "an uncontained ECC error",
    109: "a context switch that timed out",
    119: "a timeout of the GPU's own processor (GSP)",
    120: "an error of the GPU's own processor (GSP)",
    137: "an illegal access over NVLink",
    140: "an unrecovered ECC error",
    **dict.fromkeys(range(144, 151), "an NVLink error"),
}
_DIAGNOSE = "check the GPU before it is used again: nvidia-smi -q -d ECC,ROW_REMAPPER and dcgmi diag -r 3"
_DRAIN = (
    "drain the node, and reset the GPU (nvidia-smi --gpu-reset -i ID) or reboot; then resume from the last checkpoint"
)
_SANITIZE = (
    "run once with CUDA_LAUNCH_BLOCKING=1 to see the call, and under `compute-sanitizer --tool memcheck` to see the kernel;"
    " suspect custom kernels and compiled extensions first, then indices out of range"
)
_ALL = ("exceptions.*", "processes.*", "collectives.*", "network.*", "numerics.nonfinite")


def _xid_sign(codes: str) -> Sign:
    """Return the sign of a line of the kernel's log with one of these Xids; `codes` is an expression such as `63|64`."""
    return sign("Xid", rf"Xid \(PCI:(?P<pci>[0-9a-fA-F:.]{{4,20}})\): (?P<xid>{codes})(?!\d),? ?(?P<rest>.{{0,200}})")


def _gpu(case: Case) -> str:
    """Return the GPU of an Xid as `The GPU at dc:00`, without the domain that is always 0000."""
    return f"The GPU at {case.given['pci'].removeprefix('0000:')}"


def _xid_event(text: str, *says: str, source: str = "") -> Example:
    """Return an example for an Xid with the words that its answer has."""
    return Example(text, source=source, says=says)


def _fell_off_why(case: Case) -> str:
    """Return why a GPU cannot be reached, with the error of the link that came first if the log shows it."""
    if case.printed("Surprise Down"):
        return (
            "its PCIe link went down first (AER: Surprise Down Error), as with a card, riser or slot with bad contact, too"
            " little power, or a card that is too hot"
        )
    return (
        "the driver no longer reaches it over PCIe, most often because of the card, its power, its cooling or its slot"
    )


def _previous(case: Case) -> int:
    """Return the Xid that an Xid 45 names as its cause; 0 if it names none."""
    return int(case.given.get("previous") or 0)


def _cleanup_headline(case: Case) -> str:
    """Return the headline for an Xid 45, by the Xid that it follows from."""
    code = _previous(case)
    if code:
        return f"{_gpu(case)} had Xid {code}, {_XID_NAMES.get(code, 'an earlier error')}; Xid 45 followed"
    return f"{_gpu(case)}: the driver cleaned up after a program that ended (Xid 45)"


def _casts_to_double(case: Case) -> bool:
    """Return whether the traceback's own line casts to float64."""
    return case.printed(r"\.double\(\)|dtype=(?:torch|np)\.float64|astype\((?:np\.)?float64")


XIDS = (
    Failure(
        id="hardware.xid_fell_off_bus",
        kind=LogClass.HARDWARE,
        what="The driver no longer reaches a GPU over PCIe (Xid 79).",
        signs=(
            _xid_sign("79"),
            sign("fallen off the bus", r"GPU (?:at PCI:)?(?P<pci>[0-9a-fA-F:.]{7,20})\S*[^\n]{0,80}fallen off the bus"),
        ),
        clues=(sign("Surprise Down"),),
        headline=lambda case: (
            f"{_gpu(case)} fell off the bus{' (Xid 79)' if 'Xid' in case.lead.message else ''}: its PCIe link is gone"
        ),
        why=_fell_off_why,
        next=(
            "drain the node and power-cycle it (a reset of the GPU does not reach it); if it comes back, check power cables,"
            " cooling (nvidia-smi -q -d TEMPERATURE,POWER) and the seat of the card, then run dcgmi diag -r 3",
            "replace the card or move it to another slot if it happens again",
        ),
        check="`lspci -s ADDRESS` shows `rev ff` for a card that is gone; `dmesg -T | grep -i aer` shows the link's errors",
        rules_out="a driver that was updated without a reboot, which says `version mismatch`",
        explains=_ALL,
        tier=Tier.HARDWARE,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "[74889.542184] pcieport 0000:00:02.0:    [ 5] Surprise Down Error    (First)\n"
                "[74889.644138] NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.",
                source="wilicc/gpu-burn#1",
                says=("02:00", "Surprise Down", "power-cycle"),
            ),
            Example(
                "NVRM: Xid (PCI:0000:9d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
                says=("9d:00", "cooling"),
            ),
        ),
        near_misses=("pcieport 0000:00:02.0:    [12] Replay Timer Timeout",),
        knowledge="NVIDIA: Xid errors, 79",
    ),
    Failure(
        id="hardware.xid_cleanup",
        kind=LogClass.HARDWARE,
        what="The driver removed a program's channels after an earlier error (Xid 45).",
        signs=(
            sign(
                "Xid",
                r"Xid \(PCI:(?P<pci>[0-9a-fA-F:.]{4,20})\): 45,[^\n]{0,200}?caused by previous Xid (?P<previous>\d+)",
            ),
        ),
        headline=_cleanup_headline,
        why=lambda case: (
            f"Xid 45 only reports that the program's channels were cleaned up; Xid {_previous(case)} came before it in"
            " the kernel's log"
        ),
        next=(
            lambda case: (
                f"find the first line with Xid {_previous(case)} (`dmesg -T | grep Xid`): it names the GPU and the link"
                + (
                    ". Then drain the node and reboot it; if NVLink errors come back on the same link, the GPU, the baseboard"
                    " or the NVSwitch is to be replaced"
                    if _previous(case) in range(144, 151) or _previous(case) in (74, 137)
                    else ". Then treat the GPU as that Xid says"
                )
            ),
            _DIAGNOSE,
        ),
        explains=_ALL,
        tier=Tier.HARDWARE,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "kernel: NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149\n"
                "kernel: NVRM: Xid (PCI:0000:ed:00): 45, pid=1818992, name=python3, Ch 0000000c caused by previous Xid 145",
                source="NVIDIA/open-gpu-kernel-modules#1150",
                says=("Xid 149", "NVLink", "reboot"),
            ),
        ),
        knowledge="NVIDIA: Xid errors, 45",
    ),
    Failure(
        id="hardware.xid_memory_error",
        kind=LogClass.HARDWARE,
        what="A GPU had an uncorrectable error in its memory (Xid 48, 95, 140).",
        signs=(_xid_sign("48|95|140"),),
        headline=lambda case: f"{_gpu(case)} had an uncorrectable memory error (Xid {case.given['xid']})",
        why=lambda case: (
            "the error could not be contained, so every program on this GPU is affected, not only the one that is named"
            if case.given["xid"] == "95"
            else "the data in that memory are lost, and the driver ends the program; no program causes such an error"
        ),
        next=(
            _DRAIN,
            "replace the GPU if ROW_REMAPPER reports a failure, if remapping is exhausted, or if it happens again; "
            + _DIAGNOSE,
        ),
        explains=_ALL,
        tier=Tier.HARDWARE,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "Dec  2 11:38:27 worker4 kernel: [  199.234935] NVRM: GPU 0000:0a:00.0: rm_init_adapter failed, device minor number 5\n"
                "Dec  2 11:38:47 worker4 kernel: [  219.470994] NVRM: Xid (PCI:0000:07:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at physAddr 0x7fffa8860 partition 7, subpartition 1.\n"
                "Dec  2 11:38:47 worker4 kernel: [  219.471050] NVRM: Xid (PCI:0000:07:00): 64, pid='<unknown>', name=<unknown>, Dynamic Page Retirement: Blacklisting failed.  Page should have been blacklisted on boot(0x00000000007fffa8).",
                source="NVIDIA/gpu-operator#1146",
                says=("48",),
            ),
            Example(
                "NVRM: Xid (PCI:0000:01:00): 95, pid=7062, Uncontained: LTC TAG (0x2,0x1). RST: Yes, D-RST: No",
                source="NVIDIA/open-gpu-kernel-modules: error containment",
            ),
            _xid_event(
                "NVRM: Xid (PCI:0000:3b:00): 48, pid=2837261, name=python, An uncorrectable double bit error (DBE) has been"
                " detected on GPU in the framebuffer at partition 4, subpartition 0.",
                "3b:00",
                "gpu-reset",
            ),
            _xid_event(
                "NVRM: Xid (PCI:0000:cb:00): 95, pid='<unknown>', name=<unknown>, Uncontained: FBHUB.", "every program"
            ),
        ),
        knowledge="NVIDIA: Xid errors; GPU memory error management",
    ),
    Failure(
        id="hardware.xid_contained_ecc",
        kind=LogClass.HARDWARE,
        what="A GPU had an uncorrectable memory error that only affects one program (Xid 94).",
        signs=(_xid_sign("94"),),
        headline=lambda case: f"{_gpu(case)} had a memory error that ended this program (Xid 94, contained ECC)",
        why="the error was contained: only the program that used this memory ends, and the row is remapped at the next reset",
        next=(
            "restart from the last checkpoint; reset the GPU when it is idle (nvidia-smi --gpu-reset -i ID), so that the row"
            " is remapped",
            _DIAGNOSE + "; several in a short time mean that the GPU is to be replaced",
        ),
        explains=_ALL,
        tier=Tier.HARDWARE,
        event=EventKind.KNOWN,
        examples=(
            _xid_event(
                "NVRM: Xid (PCI:0000:9b:00): 94, pid=1234, name=python3, Contained ECC error",
                "9b:00",
                "remapped",
                source="leptonai/gpud#1174",
            ),
        ),
        knowledge="NVIDIA: GPU memory error management",
    ),
    Failure(
        id="hardware.xid_row_remap",
        kind=LogClass.HARDWARE,
        what="A GPU recorded memory that is to be remapped or retired (Xid 63), or could not do so (Xid 64).",
        signs=(_xid_sign("63|64"),),
        headline=lambda case: (
            f"{_gpu(case)} could not remap bad memory, or not record it (Xid 64)"
            if case.given["xid"] == "64"
            else f"{_gpu(case)} recorded a bad memory row or page (Xid 63), to be replaced at its next reset"
        ),
        why=lambda case: (
            "its spare rows are used up, or the table could not be written"
            if case.given["xid"] == "64"
            else "this alone is no failure: look for Xid 48, 94 or 95 beside it, which end the program"
        ),
        next=(
            lambda case: (
                "drain the node and reset the GPU; have it replaced if `nvidia-smi -q -d ROW_REMAPPER` shows a remapping failure"
                if case.given["xid"] == "64"
                else "reset the GPU when its jobs are done: nvidia-smi --gpu-reset -i ID, or a reboot; nvidia-smi -q -d"
                " ROW_REMAPPER then shows no pending rows"
            ),
        ),
        tier=Tier.SOFT_HARDWARE,
        explains=_ALL,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.",
                source="stas00/ml-engineering: compute/accelerator/nvidia/debug.md",
                says=("10:1c",),
            ),
            _xid_event(
                "NVRM: Xid (PCI:0000:07:00): 63, pid=4211, name=python, Row Remapper: New row marked for remapping, reset gpu"
                " to activate.",
                "07:00",
                "reset",
            ),
            _xid_event(
                "NVRM: Xid (PCI:0000:07:00): 64, pid='<unknown>', name=<unknown>, Row remapper: failed to remap",
                "replaced",
            ),
        ),
        knowledge="NVIDIA: GPU memory error management; leptonai/gpud#987",
    ),
    Failure(
        id="hardware.xid_illegal_address",
        kind=LogClass.HARDWARE,
        what="A program used an illegal address on a GPU (Xid 31).",
        signs=(_xid_sign("31"),),
        headline=lambda case: f"{_gpu(case)}: a kernel used an illegal address (Xid 31, MMU fault)",
        why=lambda case: (
            "the driver could not tell which client made the access, after which the GPU may need a reset; a kernel that"
            " writes outside of its memory is the most common cause"
            if "UNRECOGNIZED" in case.given["rest"]
            else "this is most often a fault of a program: a kernel that reads or writes outside of its memory, which Python"
            " reports as `an illegal memory access was encountered`"
        ),
        next=(
            _SANITIZE,
            "if different programs fail on this GPU only, or after a new driver, suspect these: go back to the driver before,"
            " and run dcgmi diag -r 3",
        ),
        tier=Tier.SOFT_HARDWARE,
        event=EventKind.KNOWN,
        examples=(
            _xid_event(
                "[Fri Jan 29 23:42:34 2021] NVRM: Xid (PCI:0000:db:00): 31, pid=13641, Ch 00000008, intr 00000000. MMU Fault:"
                " ENGINE GRAPHICS GPCCLIENT_T1_10 faulted @ 0x7fd7_90743000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
                "illegal address",
                "compute-sanitizer",
                source="pytorch/pytorch#51382",
            ),
        ),
        knowledge="NVIDIA: Xid errors, 31",
    ),
    Failure(
        id="hardware.xid_kernel_exception",
        kind=LogClass.HARDWARE,
        what="A kernel raised an exception on a GPU (Xid 13).",
        signs=(_xid_sign("13"),),
        headline=lambda case: f"{_gpu(case)}: a kernel raised an exception (Xid 13)",
        why="an index out of range, an illegal instruction or a misaligned address in a kernel; usually the program, rarely the"
        " device",
        next=(_SANITIZE, "if it stays on one GPU whatever runs there, run dcgmi diag -r 3 and exclude the node"),
        tier=Tier.SOFT_HARDWARE,
        event=EventKind.KNOWN,
        examples=(
            _xid_event(
                "[Fri Aug 30 11:43:09 2024] NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp"
                " Exception on (GPC 7, TPC 7, SM 0): Illegal Instruction Parameter",
                "cb:00",
                "compute-sanitizer",
                source="leptonai/gpud#46",
            ),
        ),
        knowledge="NVIDIA: Xid errors, 13",
    ),
    Failure(
        id="hardware.xid_stopped",
        kind=LogClass.HARDWARE,
        what="A program's work on a GPU was stopped after a fault of that program (Xid 43).",
        signs=(_xid_sign("43"),),
        headline=lambda case: f"{_gpu(case)} stopped the work of a program after its fault (Xid 43)",
        why="the GPU itself is usually healthy: the program hit an error of its own, such as an illegal memory access"
        " or a failed assertion",
        next=(
            "read the CUDA error that the program printed: it names the fault. Without one, " + _SANITIZE,
            "if it stays on one GPU, run dcgmi diag -r 3",
        ),
        tier=Tier.ABORTED,
        event=EventKind.KNOWN,
        examples=(
            _xid_event(
                "[Wed Jan 27 23:04:35 2021] NVRM: Xid (PCI:0000:3d:00): 43, pid=35521, Ch 00000008",
                "3d:00",
                "CUDA error",
                source="pytorch/pytorch#51382",
            ),
        ),
        knowledge="NVIDIA: Xid errors, 43",
    ),
    Failure(
        id="hardware.xid_nvlink",
        kind=LogClass.HARDWARE,
        what="A link between GPUs failed (Xid 74, 144 to 150; SXid of an NVSwitch).",
        signs=(
            _xid_sign("74|14[4-9]|150"),
            sign("SXid", r"SXid \(PCI:(?P<pci>[0-9a-fA-F:.]{4,20})\): (?P<xid>\d+),? ?(?P<rest>[^\n]{0,200})"),
        ),
        headline=lambda case: (
            f"{_gpu(case) if 'SXid' not in text_of(case.lead) else 'The NVSwitch at ' + case.given['pci']} had an NVLink error"
            f" ({'SXid' if 'SXid' in text_of(case.lead) else 'Xid'} {case.given['xid']})"
        ),
        why=lambda case: (
            "the driver itself calls it not fatal, so look whether the job really ended at that time"
            if re.search(r"(?i)non-?fatal", case.given["rest"])
            else "a link or the switch between GPUs failed, and NCCL over NVLink with it; the program is seldom the cause"
        ),
        next=(
            "if the job ended at that time, drain the node and reboot it; nvidia-smi nvlink -e shows the counts of errors for each link",
            "if the same link fails again, reseat or replace the GPU, the baseboard or the NVSwitch; to go on meanwhile on this"
            " node only: NCCL_P2P_DISABLE=1, which is slow",
        ),
        explains=_ALL,
        tier=Tier.HARDWARE,
        event=EventKind.KNOWN,
        examples=(
            _xid_event(
                "NVRM: Xid (PCI:0019:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x00000000 0x00000000"
                " 0x00000000 0x00000000)",
                "Xid 149",
                "nvlink -e",
                source="leptonai/gpud#1174",
            ),
            _xid_event(
                "NVRM: Xid (PCI:0000:4e:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 6"
                "(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
                "4e:00",
            ),
            _xid_event(
                "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", "NVSwitch", "20034"
            ),
        ),
        knowledge="NVIDIA: Xid errors; fabric manager user guide",
    ),
    Failure(
        id="hardware.xid_gsp",
        kind=LogClass.HARDWARE,
        what="The GPU's own processor (GSP) does not answer or failed (Xid 119, 120).",
        signs=(_xid_sign("119|120"),),
        headline=lambda case: (
            f"{_gpu(case)}: its own processor (GSP) {'does not answer' if case.given['xid'] == '119' else 'reported an error'}"
            f" (Xid {case.given['xid']})"
        ),
        why="the driver runs part of itself on that processor, and without its answers calls hang or fail",
        next=(
            "drain the node, and power-cycle it (a reset of the GPU often hangs)",
            "install a newer driver: some had faults of this kind; as a test switch the firmware off"
            " (NVreg_EnableGpuFirmware=0, only where the GPU still supports that)",
            "if it stays on one GPU with a current driver, have it replaced",
        ),
        explains=_ALL,
        tier=Tier.HARDWARE,
        event=EventKind.KNOWN,
        examples=(
            _xid_event(
                "NVRM: Xid (PCI:0000:65:00): 119, pid=1589, name=nvidia-smi, Timeout after 6s of waiting for RPC response from"
                " GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20800a4c 0x4).",
                "65:00",
                "power-cycle",
                source="NVIDIA/open-gpu-kernel-modules#446",
            ),
        ),
        knowledge="NVIDIA/open-gpu-kernel-modules#446; release notes of the data center driver 525",
    ),
    Failure(
        id="hardware.xid_peer_access",
        kind=LogClass.HARDWARE,
        what="A program accessed the memory of another GPU illegally over NVLink (Xid 137).",
        signs=(_xid_sign("137"),),
        headline=lambda case: f"{_gpu(case)}: an illegal access to another GPU's memory over NVLink (Xid 137)",
        why="most often a program did this: memory of a peer that was freed or never mapped; a rank that died in the middle of"
        " a collective leaves such accesses, too",
        next=(
            "look for a rank that failed before: its error is then the cause, and this line its consequence",
            "else " + _SANITIZE,
        ),
        tier=Tier.ABORTED,
        event=EventKind.KNOWN,
        examples=(
            _xid_event(
                "NVRM: Xid (PCI:0000:18:00): 137, pid=90211, name=python, NVLink FLA privilege error, remote MMU fault",
                "18:00",
                "failed before",
            ),
        ),
        knowledge="NVIDIA: Xid errors, 137",
    ),
    Failure(
        id="hardware.xid_context_switch",
        kind=LogClass.HARDWARE,
        what="A context switch on a GPU timed out (Xid 109).",
        signs=(_xid_sign("109"),),
        headline=lambda case: f"{_gpu(case)}: a context switch timed out (Xid 109)",
        why="most often a kernel that runs forever, or one that hangs after an earlier fault, keeps the GPU from"
        " switching",
        next=(
            "look for an Xid 13 or 31 just before, and treat that one first",
            "without one, see what runs: `cuda-gdb -p PID` or nvidia-smi; update the driver, and run dcgmi diag -r 3 if it stays"
            " on one GPU",
        ),
        tier=Tier.SOFT_HARDWARE,
        event=EventKind.KNOWN,
        examples=(
            _xid_event(
                "[Fri Aug 30 11:43:14 2024] NVRM: Xid (PCI:0000:cb:00): 109, pid=1797828, name=pt_main_thread, Ch 00000008,"
                " errorString CTX SWITCH TIMEOUT, Info 0x58005",
                "cb:00",
                "Xid 13",
                source="leptonai/gpud#46",
            ),
        ),
        knowledge="NVIDIA: Xid errors, 109",
    ),
    Failure(
        id="hardware.xid_microcontroller",
        kind=LogClass.HARDWARE,
        what="A microcontroller in the GPU stopped (Xid 61, 62), or the GPU could not be set up (143).",
        signs=(_xid_sign("61|62|143"),),
        headline=lambda case: (
            f"{_gpu(case)}: an internal microcontroller stopped (Xid {case.given['xid']})"
            if case.given["xid"] != "143"
            else f"{_gpu(case)} could not be initialised (Xid 143)"
        ),
        why="the firmware in the GPU failed, most often for lack of power, heat or a broken card; sometimes after a driver bug",
        next=(
            "drain the node and power-cycle it, update the driver and the VBIOS, check power and temperature",
            "have the GPU replaced if it happens again on the same card",
        ),
        explains=_ALL,
        tier=Tier.HARDWARE,
        event=EventKind.KNOWN,
        examples=(
            _xid_event(
                "[14370.687545] NVRM: Xid (PCI:0000:0a:00): 62, pid='<unknown>', name=<unknown>, 2023b230 20238a3a 2023e8b6"
                " 2023eac4 2023ec3c 2023ea86 00000000 00000000",
                "0a:00",
                "power-cycle",
                source="madMAx43v3r/chia-gigahorse#301",
            ),
        ),
        knowledge="NVIDIA: Xid errors, 61 and 62",
    ),
    Failure(
        id="hardware.xid_recovery_action",
        kind=LogClass.HARDWARE,
        what="The driver says what a GPU needs to recover (Xid 154).",
        signs=(_xid_sign("154"),),
        headline=lambda case: (
            f"{_gpu(case)} needs: {action[1]}"
            if (action := re.search(r"to 0x\w+ \(([^)]{3,40})\)", case.given["rest"]))
            else f"{_gpu(case)} needs an action of its administrator (Xid 154)"
        ),
        why="Xid 154 only says what is to be done; the Xid before it in the kernel's log says what happened",
        next=(
            "do what it says on that node (`Node Reboot Required`, `GPU Reset Required`, `Drain P2P`), and read the Xid before"
            " (`dmesg -T | grep Xid`)",
            _DIAGNOSE,
        ),
        explains=_ALL,
        tier=Tier.SOFT_HARDWARE,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
                source="NVIDIA/NVSentinel: syslog-health-monitor",
            ),
        ),
        knowledge="NVIDIA: Xid errors, 154",
    ),
)


def _held_by_others(case: Case) -> bool:
    """Return whether less than half of a device's memory is this process's, and yet it is full."""
    own, free, total = (_mps_bytes(case.given.get(name) or "0 MiB") for name in ("own", "free", "total"))
    return own > 0 and 2 * (own + free) < total


def _is_loading(case: Case) -> bool:
    """Return whether the memory ran out while weights were loaded onto the device."""
    return case.called(
        r":(?:from_pretrained|_load_\w*state_dict\w*|_load_pretrained_model|set_module_tensor_to_device)$"
    )


def _mps_bytes(printed: str) -> float:
    """Return a printed size such as `14.76 GB` as a number that can be compared."""
    amount, unit = printed.split()
    return float(amount) * {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[unit[0]]


DEVICES = (
    Failure(
        id="hardware.cuda_ecc",
        kind=LogClass.HARDWARE,
        what="CUDA met an uncorrectable error in the memory of a GPU or on a link between GPUs.",
        signs=(
            sign("uncorrectable ECC error"),
            sign("uncorrectable NVLink error", r"uncorrectable NVLink error detected"),
        ),
        headline=lambda case: (
            f"A GPU{f' of {who(case.ranks)}' if case.ranks else ''} had an uncorrectable"
            f" {'NVLink' if 'NVLink' in text_of(case.lead) else 'memory (ECC)'} error"
        ),
        why=lambda case: (
            f"{'' if 'NVLink' in text_of(case.lead) else 'the data in that memory are lost; '}no program causes it, and the line of"
            " the traceback is only where it was noticed"
        ),
        next=(
            lambda case: (
                "drain the node of this rank, and reset the GPU or reboot;"
                f" {'nvidia-smi nvlink -e' if 'NVLink' in text_of(case.lead) else 'nvidia-smi -q -d ECC,ROW_REMAPPER'} shows which"
                " GPU counts errors"
            ),
            "resume from the last checkpoint on other nodes (Slurm: --exclude=NODE); have the GPU replaced if errors come back",
        ),
        check="`dmesg -T | grep Xid`: 48, 63, 94, 95 or 140 with the address of the GPU",
        explains=_ALL,
        tier=Tier.HARDWARE,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously"
                " reported at some other API call, so the stacktrace below might be incorrect.",
                source="jade-hpc-gpu/jade-hpc-gpu.github.io#194",
                says=("ECC", "drain"),
            ),
            Example(
                "torch.AcceleratorError: CUDA error: uncorrectable NVLink error detected during the execution",
                source="MIC-DKFZ/nnUNet#1519",
                says=("NVLink", "nvlink -e"),
            ),
        ),
        knowledge="CUDA: cudaErrorECCUncorrectable (214), cudaErrorNvlinkUncorrectable",
    ),
    Failure(
        id="hardware.gpu_lost",
        kind=LogClass.HARDWARE,
        what="The tools of the driver cannot reach a GPU any more.",
        signs=(
            sign(
                "Unable to determine the device handle",
                r"Unable to determine the device handle for (?:GPU ?\d*:? ?)?(?P<pci>[0-9A-Fa-f:.]{7,20})?",
            ),
            sign("GPU is lost", r"GPU is lost\.?"),
        ),
        headline=lambda case: (
            f"The driver cannot reach the GPU{' at ' + pci.strip(':') if (pci := case.given.get('pci')) else ''} any more"
        ),
        why="most often the card fell off the bus or hangs, for power, heat or a broken card; all GPUs of the node may"
        " be affected",
        next=(
            "reboot the node (power-cycle it if that hangs); `dmesg -T | grep -iE 'xid|aer'` says what happened to the card",
            "if it happens again, check power and cooling, and have the card replaced",
        ),
        explains=_ALL,
        tier=Tier.HARDWARE,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "Unable to determine the device handle for GPU0000:05:00.0: Unknown Error",
                source="liucongg/ChatGLM-Finetuning#95",
                says=("05:00",),
            ),
        ),
        knowledge="NVML: NVML_ERROR_GPU_IS_LOST",
    ),
    # AMD.
    Failure(
        id="hardware.amd_memory_fault",
        kind=LogClass.CRASHED,
        what="A kernel on an AMD GPU used an address that is not mapped.",
        signs=(
            sign(
                "Memory access fault by GPU",
                r"Memory access fault by GPU (?P<node>node-\d+)[^\n]{0,120}?(?:Reason: (?P<why>[^\n.]{1,80}))?$",
            ),
        ),
        headline=lambda case: f"A kernel on an AMD GPU used an illegal address (GPU {case.given['node']})",
        why=lambda case: (
            f"{case.given['node']} is the number of the GPU in the runtime, not a host; a kernel read or wrote outside of its"
            " memory. Most often that is a fault of a kernel, a library or the driver, seldom of the card"
            + (
                f": {n} GPUs report it at once"
                if (n := len({m for e in case.failure.events for m in re.findall(r"by GPU (node-\d+)", e.message)})) > 1
                else ""
            )
        ),
        next=(
            "find the kernel: run once with AMD_SERIALIZE_KERNEL=3 HIP_LAUNCH_BLOCKING=1, and with the newest custom kernel or"
            " extension (a line such as `finish build` before) switched off",
            "update PyTorch and ROCm together, to versions that fit each other and the GPU (torch.version.hip,"
            " `rocminfo | grep gfx`)",
            "only if one GPU fails with every program, suspect the card",
        ),
        explains=("processes.*", "collectives.*", "network.*"),
        tier=Tier.NATIVE_CRASH,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "Memory access fault by GPU node-1 (Agent handle: 0x55f8b54eec30) on address 0x7f2a53193000. Reason: Page not"
                " present or supervisor privilege.",
                source="ROCm/legacy-rocm-build#5051",
                says=("node-1", "AMD_SERIALIZE_KERNEL"),
            ),
        ),
        knowledge="ROCm: debugging with the runtime's environment variables; ROCm/legacy-rocm-build#5051",
    ),
    Failure(
        id="hardware.amd_false_allocation",
        kind=LogClass.CRASHED,
        what="The ROCm runtime failed to make a buffer although memory was free.",
        signs=(
            sign(
                "Allocation failed : Device memory",
                r"Allocation failed : Device memory : required :(?P<required>\d{1,17}) \| free :(?P<free>\d{1,17}) \| total"
                r" :(?P<total>\d{1,17})",
            ),
        ),
        headline=lambda case: (
            f"The ROCm runtime could not allocate {size(int(case.given['required']))} with {size(int(case.given['free']))} free"
            if int(case.given["required"]) < int(case.given["free"])
            else f"The AMD GPU is full: {size(int(case.given['required']))} asked for, {size(int(case.given['free']))} free"
        ),
        why=lambda case: (
            f"the GPU was not full ({size(int(case.given['free']))} of {size(int(case.given['total']))} free): most often a buffer of the"
            " runtime or the driver failed, not a tensor"
            if int(case.given["required"]) < int(case.given["free"])
            else "the request was larger than what was free"
        ),
        next=(
            lambda case: (
                "use another version of ROCm and of the driver (amdgpu) that supports this GPU, with a PyTorch built for"
                " it; report it to AMD with these lines"
                if int(case.given["required"]) < int(case.given["free"])
                else "use a smaller batch, or see with rocm-smi --showpids what else uses the GPU"
            ),
            "check the limits beside the GPU's memory: locked memory (ulimit -l), the size of the GTT, IOMMU settings",
        ),
        tier=Tier.OWN_FAILURE,
        event=EventKind.KNOWN,
        examples=(
            Example(
                ":1:hip_memory.cpp :303 : 9616777863 us: 4277 : [tid:0x7f2accbfe6c0] Allocation failed : Device memory :"
                " required :4 | free :2314338304 | total :17163091968",
                source="ROCm/legacy-rocm-build#2480",
                says=("4 B", "2.2 GiB", "another version of ROCm"),
            ),
        ),
        knowledge="ROCm: clr, hip_memory.cpp",
    ),
    Failure(
        id="hardware.amd_gpu_hang",
        kind=LogClass.HARDWARE,
        what="An AMD GPU hangs, and its driver reset it.",
        signs=(
            sign(
                "HW Exception by GPU",
                r"HW Exception by GPU (?P<node>node-\d+)[^\n]{0,80}reason ?: ?(?P<why>[^\n]{1,60})",
            ),
            sign("GPU reset begin", r"amdgpu (?P<pci>[0-9a-f:.]{7,14}): amdgpu: GPU reset begin"),
            sign("timeout, signaled seq", r"ring (?P<ring>[\w.]+) timeout, signaled seq"),
        ),
        headline=lambda case: (
            "An AMD GPU hung"
            + (
                f" ({case.given.get('node') or case.given.get('pci') or 'ring ' + case.given.get('ring', '')})"
                if any(case.given.get(name) for name in ("node", "pci", "ring"))
                else ""
            )
            + (", and the driver resets it" if "GPU reset begin" in text_of(case.lead) else "")
        ),
        why="a kernel did not end in time, or the card failed; a reset ends every program on the GPU",
        next=(
            "read the lines of amdgpu in `dmesg -T` at that time: a page fault before the hang points to a kernel, RAS or ECC lines"
            " to the card",
            "update ROCm, the kernel driver and the GPU's firmware; leave out custom kernels (HIP_LAUNCH_BLOCKING=1 shows the call)",
            "exclude the node if it happens on one GPU only (rocm-smi, amd-smi bad-pages)",
        ),
        explains=_ALL,
        tier=Tier.HARDWARE,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "{'loss': 0.4589, 'grad_norm': 1.0493940198290594, 'learning_rate': 5.284132841328413e-06, 'epoch': 1.22}\n"
                " 41%|██████████████████████████████████████████▌                                                              | 366/903 [5:15:39<6:53:09, 46.16s/it]HW Exception by GPU node-9 (Agent handle: 0x631351bb5a20) reason :GPU Hang\n"
                "HW Exception by GPU node-9 (Agent handle: 0x64ff272d8ab0) reason :GPU Hang\n"
                "HW Exception by GPU node-9 (Agent handle: 0x565d634d8610) reason :GPU Hang\n"
                "Aborted (core dumped)",
                source="ROCm/legacy-rocm-build#4021",
                says=("node-9",),
            ),
            Example("HW Exception by GPU node-4 (Agent handle: 0x1ebc04e0) reason :GPU Hang", says=("node-4", "dmesg")),
            Example("[ 8123.114530] amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!", says=("0000:c1:00.0",)),
            Example(
                "kernel: amdgpu 0000:55:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=12, emitted seq=13",
                says=("ring gfx_0",),
            ),
        ),
        knowledge="Linux: amdgpu driver, GPU reset",
    ),
    Failure(
        id="hardware.amd_hsa",
        kind=LogClass.CRASHED,
        what="A queue of the ROCm runtime was aborted.",
        signs=(sign("HSA_STATUS_ERROR", r"(?P<status>HSA_STATUS_ERROR_[A-Z_]{4,60})"),),
        headline=lambda case: f"The ROCm runtime aborted: {case.given['status']}"[:90],
        why=lambda case: (
            "a kernel ended with a hardware exception, most often for an illegal instruction, an assertion or an index out of range"
            if "EXCEPTION" in case.given["status"]
            else "the runtime had no room for one of its own buffers (scratch, queues, events), or the GPU's memory was full"
            if "RESOURCES" in case.given["status"]
            else "a kernel read or wrote outside of its memory"
            if "MEMORY" in case.given["status"]
            else "a command of the program was refused by the runtime"
        ),
        next=(
            lambda case: (
                "run once with AMD_SERIALIZE_KERNEL=3 to see the call; check labels and indices (a class or token out of range"
                " ends like this), and that PyTorch has kernels for this GPU (rocminfo | grep gfx, torch.cuda.get_arch_list())"
                if "RESOURCES" not in case.given["status"]
                else "check the GPU's memory (rocm-smi --showmeminfo vram) and the host's limits (ulimit -l, ulimit -u); then fewer"
                " processes on the GPU, HSA_NO_SCRATCH_RECLAIM=1, or another version of ROCm"
            ),
            "update PyTorch and ROCm together",
        ),
        explains=("processes.*", "collectives.*", "network.*"),
        tier=Tier.NATIVE_CRASH,
        event=EventKind.KNOWN,
        examples=(
            Example(
                ":0:rocdevice.cpp :3020: 5875275709338d us: Callback: Queue 0x7f4580c00000 aborting with error :"
                " HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception. code: 0x1016",
                source="vllm-project/vllm#20007",
                says=("HSA_STATUS_ERROR_EXCEPTION", "AMD_SERIALIZE_KERNEL"),
            ),
            Example(
                ":0:rocdevice.cpp :2652: 4238358292712 us: 48946: [tid:0x7fffd023f700] Device::callbackQueue aborting with"
                " error : HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate the necessary resources.",
                source="StanfordLegion/legion#1339",
                says=("rocm-smi",),
            ),
        ),
        knowledge="ROCr: hsa_status_t; pytorch/pytorch#173791",
    ),
    # Apple.
    Failure(
        id="hardware.mps_out_of_memory",
        kind=LogClass.OOM,
        what="An Apple GPU has no memory left within its limit.",
        signs=(
            sign(
                "MPS backend out of memory",
                r"MPS backend out of memory(?: \(MPS allocated: (?P<own>[\d.]+ [KMGT]i?B), other allocations: (?P<other>[\d.]+"
                r" [KMGT]i?B), max allowed: (?P<limit>[\d.]+ [KMGT]i?B)\)\.? Tried to allocate (?P<asked>[\d.]+ \w+))?",
            ),
            sign("Invalid buffer size", r"Invalid buffer size: (?P<asked>[\d.]+ [KMGT]i?B)"),
        ),
        headline=lambda case: (
            f"Apple GPU: {case.given['own']} of PyTorch and {case.given['other']} of others reach {case.given['limit']}"
            if case.given.get("own")
            else f"Apple GPU: one tensor of {case.given['asked']} is larger than a buffer may be"
            if case.given.get("asked")
            else "The Apple GPU (MPS) has no memory left"
        ),
        why=lambda case: (
            "other allocations are those of the system, of other programs and of other parts of this one: they, and not the"
            " model's tensors, take most of the shared memory"
            if case.given.get("own") and _mps_bytes(case.given["other"]) > _mps_bytes(case.given["own"])
            else "the GPU shares the memory of the Mac, and PyTorch stops at a share of it"
        ),
        next=(
            "use a smaller batch or a shorter sequence (per_device_train_batch_size=1 with gradient_accumulation_steps), or"
            " recompute activations",
            Advice(
                "close other programs, and restart Python: most of the memory is not that of tensors (torch.mps.empty_cache() frees"
                " what PyTorch keeps)",
                when=lambda case: (
                    bool(case.given.get("own")) and _mps_bytes(case.given["other"]) > _mps_bytes(case.given["own"])
                ),
            ),
            Advice(
                "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 in the environment of this very process lifts the limit, and the Mac may then"
                " swap or freeze; a limit in the message means that it did not arrive",
                when=lambda case: bool(case.given.get("own")) or not case.given.get("asked"),
            ),
        ),
        rules_out="settings for CUDA (PYTORCH_CUDA_ALLOC_CONF), which do nothing here",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: MPS backend out of memory (MPS allocated: 11.14 GB, other allocations: 6.65 GB, max allowed: 18.13"
                " GB). Tried to allocate 375.40 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit"
                " for memory allocations (may cause system failure).",
                source="pytorch/pytorch#152351",
                says=("11.14 GB", "smaller batch"),
            ),
            Example(
                "RuntimeError: MPS backend out of memory (MPS allocated: 5.50 GB, other allocations: 14.76 GB, max allowed: 20.40"
                " GB). Tried to allocate 147.24 MB on private pool.",
                says=("14.76 GB", "close other programs"),
            ),
            Example("RuntimeError: Invalid buffer size: 58.07 GiB", says=("58.07 GiB", "shorter sequence")),
        ),
        knowledge="PyTorch: MPS environment variables",
    ),
    Failure(
        id="hardware.mps_unsupported",
        kind=LogClass.CRASHED,
        what="An operation is not implemented for Apple GPUs.",
        signs=(
            sign(
                "is not currently implemented for the MPS device",
                r"operator '(?P<operator>[\w:.]+)' is not currently implemented for the MPS",
            ),
            sign("to float", r"Cannot convert a MPS Tensor to (?P<operator>float64) dtype"),
            sign("not supported on MPS", r"(?P<operator>\w[\w ]{0,40}?) (?:is|are) not supported on MPS"),
            sign("MPS does not support", r"MPS does not support (?P<operator>\w+)"),
        ),
        headline=lambda case: (
            "Apple GPUs have no float64: a tensor or array of that type is sent to MPS"
            if case.given["operator"] == "float64"
            else f"{case.given['operator']} is not supported on Apple GPUs (MPS) here"
        ),
        why=lambda case: (
            (
                "the line in the traceback casts to float64"
                if _casts_to_double(case)
                else "float64 most often comes from NumPy, whose floats have this type, or from a cast to it"
            )
            if case.given["operator"] == "float64"
            else "operations and types are added from version to version of PyTorch and macOS"
        ),
        next=(
            lambda case: (
                (
                    "change .double() or torch.float64 in the line that the title names to .float(), or do this part on the CPU"
                    if _casts_to_double(case)
                    else "convert before .to('mps'): tensor.float(), or np.asarray(x, dtype=np.float32)"
                )
                if case.given["operator"] == "float64"
                else "set PYTORCH_ENABLE_MPS_FALLBACK=1 before Python starts: the operation then runs on the CPU, which is slower"
                if "operator '" in text_of(case.lead)
                else "do this part on the CPU, or with another type (float32)"
            ),
            Advice(
                "or install a newer PyTorch or macOS, which may have it",
                when=lambda case: case.given["operator"] != "float64",
            ),
        ),
        examples=(
            Example(
                "NotImplementedError: The operator 'torchvision::nms' is not currently implemented for the MPS device. If you want"
                " this op to be added in priority during the prototype phase of this feature, please comment on"
                " https://github.com/pytorch/pytorch/issues/77764.",
                source="pytorch/pytorch#77754",
                says=("torchvision::nms", "PYTORCH_ENABLE_MPS_FALLBACK=1"),
            ),
            Example(
                "TypeError: Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. Please use"
                " float32 instead.",
                says=("float64", "float32"),
            ),
            Example("TypeError: BFloat16 is not supported on MPS", says=("on the CPU, or with another type",)),
        ),
        knowledge="pytorch/pytorch#77764",
    ),
    # Other accelerators.
    Failure(
        id="hardware.mps_not_available",
        kind=LogClass.STARTUP,
        what="PyTorch cannot use the Apple GPU on this system.",
        signs=(
            sign("MPS backend is supported on", r"MPS backend is supported on [Mm]acOS (?P<version>\d+(?:\.\d+)?)\+"),
            sign(
                "PyTorch is not linked with support for mps devices",
                r"not linked with support for mps devices(?P<version>)",
            ),
        ),
        headline=lambda case: (
            f"PyTorch finds no usable Apple GPU: its message asks for macOS {case.given['version']} or newer"
            if case.given["version"]
            else "This build of PyTorch has no support for Apple GPUs (MPS)"
        ),
        why=lambda case: (
            "newer releases of PyTorch need a newer macOS, and the number in the message may be older than what it"
            " needs; the same text comes where a process sees no Metal device"
            if case.given["version"]
            else "it is a build for Intel processors (Python under Rosetta), for another system, or an old one"
        ),
        next=(
            lambda case: (
                "compare `sw_vers`: if macOS is older, update it, or install an older PyTorch"
                if case.given["version"]
                else "install an arm64 Python and PyTorch: `python -c 'import platform; print(platform.machine())'` must print"
                " arm64"
            ),
            Advice(
                "if macOS is new enough: run it in a normal session; a sandbox, a virtual machine, or ssh without a login sees no"
                " Metal device",
                when=lambda case: bool(case.given["version"]),
            ),
            "the CPU works everywhere: device='cpu'",
        ),
        check='python -c "import torch; print(torch.backends.mps.is_built(), torch.backends.mps.is_available())"',
        examples=(
            Example(
                "RuntimeError: The MPS backend is supported on MacOS 13.0+.Current OS version can be queried using `sw_vers`",
                source="pytorch/pytorch#164943",
                says=("macOS 13.0", "update", "older PyTorch"),
            ),
            Example("RuntimeError: PyTorch is not linked with support for mps devices", says=("arm64",)),
        ),
        knowledge="pytorch/pytorch#164943; PyTorch's notes on the MPS backend",
    ),
    Failure(
        id="hardware.xla_float16",
        kind=LogClass.CRASHED,
        what="A TPU gets float16, which torch_xla does not compute with there.",
        signs=(
            sign("Unsupported XLA type", r"Unsupported XLA type 10\b"),
            sign("XLA type not supported", r"XLA type not supported: 10\b"),
            sign("Type not supported: Half"),
        ),
        headline="A tensor is float16 (Half), which this torch_xla does not support",
        why="XLA's type 10 is float16; TPUs compute in bfloat16",
        next=(
            "use bfloat16: bf16=True or precision='bf16' in place of fp16 or 16, torch.autocast('xla', dtype=torch.bfloat16), and"
            " no .half()",
            "the frame of your code or `location=` in the message shows where it is converted",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: Error while lowering: f32[24,3,7,7]{0,1,3,2} xla::cast, type=f32, dtype=Float, stype=Half\n"
                "Error: torch_xla/csrc/convert_ops.cpp:83 : Unsupported XLA type 10\n"
                "Python Frames:",
                source="Lightning-AI/pytorch-lightning#7471",
                says=("float16", "bfloat16"),
            ),
            Example(
                "RuntimeError: torch_xla/csrc/tensor_util.cpp:652 : Type not supported: Half",
                source="pytorch/xla#867",
            ),
        ),
        knowledge="torch_xla's documentation: tensors and bfloat16; pytorch/xla#2939",
    ),
    Failure(
        id="hardware.xla_mixed_devices",
        kind=LogClass.CRASHED,
        what="An operation on a TPU got a tensor of another device.",
        signs=(
            sign("Input tensor is not an XLA tensor", r"Input tensor is not an XLA tensor(?:: (?P<type>[\w.]+))?"),
            sign("Check failed: xtensor", r"Check failed: xtensor(?P<type>)"),
            sign("All tensors should be on xla", r"All tensors should be on xla(?P<type>)"),
        ),
        headline=lambda case: (
            "One operand is not on the XLA device"
            + (f": it is a {kind}" if (kind := case.given["type"]) else ": an input or a part of the model")
            + (" of the CPU" if kind and "cuda" not in kind.lower() else "")
        ),
        why="the model, a buffer, a new tensor made in forward, or the batch was not moved with the rest",
        next=(
            "move all of them: model.to(device) and each tensor of the batch .to(device) with device = torch_xla.device() (or"
            " xm.xla_device())",
            "create tensors with device=x.device in forward, and register constants as buffers",
            "after a checkpoint is loaded: move the optimizer's state, too",
        ),
        check="print(tensor.device) for each argument of the line that your innermost frame names",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: torch_xla/csrc/aten_xla_bridge.cpp:69 : Check failed: xtensor \n"
                "*** Begin stack trace ***\n"
                "\ttorch_xla::bridge::GetXlaTensor(at::Tensor const&)\n"
                "*** End stack trace ***\n"
                "Input tensor is not an XLA tensor: torch.FloatTensor",
                source="pytorch/xla#2960",
                says=("torch.FloatTensor", ".to(device)"),
            ),
            Example(
                "RuntimeError: torch_xla/csrc/aten_xla_bridge.cpp:110 : Check failed: xtensor ",
                source="tenstorrent/tt-xla#795",
            ),
        ),
        knowledge="pytorch/xla#2960, pytorch/xla#3108",
    ),
    Failure(
        id="hardware.xla_storage",
        kind=LogClass.CRASHED,
        what="Code reads the memory of an XLA tensor, which has none of its own.",
        signs=(sign("tensors do not have storage", r"XLA tensors do not have storage"),),
        headline="Code reads the storage of an XLA tensor, which has none{place}",
        why="an XLA tensor is a piece of a graph; sharing it between processes, pickling, data_ptr() and NumPy need memory",
        next=(
            "move it to the CPU first: tensor.cpu() before it is put into a queue, saved or converted; xm.save(...) saves a model",
            "do not use pin_memory=True or share_memory_() on XLA tensors; move the batch in the training loop",
        ),
        examples=(
            Example(
                "RuntimeError: torch_xla/csrc/tensor_impl.cpp:159 : XLA tensors do not have storage",
                source="pytorch/xla#4131",
                says=(".cpu()",),
            ),
        ),
        knowledge="pytorch/xla#4131, pytorch/xla#2576",
    ),
    Failure(
        id="hardware.npu_out_of_memory",
        kind=LogClass.OOM,
        what="An Ascend NPU or an Intel GPU has no memory left.",
        signs=(
            sign(
                "out of memory",
                r"(?P<kind>NPU|XPU) out of memory\.? Tried to allocate (?P<asked>[\d.]+ [KMGT]iB)(?: \(\w+ (?P<device>\d+); (?P<total>[\d.]+ [KMGT]iB)"
                r" total capacity; (?P<own>[\d.]+ [KMGT]iB) already allocated[^)]{0,120}?(?P<free>[\d.]+ [KMGT]iB) free)?",
            ),
        ),
        headline=lambda case: (
            f"{case.given['kind']} out of memory: {case.given['asked']} asked"
            + (f", {case.given['free']} free of {case.given['total']}" if case.given.get("free") else "")
        ),
        why=lambda case: (
            f"tensors of this process take {case.given['own']} of it"
            + (
                ", so other processes, or the cache of this one, hold most of the device"
                if _held_by_others(case)
                else ""
            )
            if case.given.get("own")
            else "a request was larger than what was free"
        ),
        next=(
            Advice(
                "see what else runs on that device (npu-smi info), end it, or give each process its own device",
                when=_held_by_others,
            ),
            Advice(
                "it fails while the weights are loaded, so no batch helps: shard them over the devices (ZeRO-3, FSDP, tensor"
                " parallelism), quantise, or take a smaller model",
                when=_is_loading,
            ),
            Advice(
                "use a smaller batch or sequence, recompute activations, or shard over more devices (FSDP, ZeRO)",
                when=lambda case: not _is_loading(case) and not _held_by_others(case),
            ),
            lambda case: (
                "against fragments: PYTORCH_NPU_ALLOC_CONF=expandable_segments:True; npu-smi info shows other processes"
                if case.given["kind"] == "NPU"
                else "see other processes with xpu-smi ps; torch.xpu.empty_cache() frees what is cached"
            ),
        ),
        rules_out="settings for CUDA, which do nothing here",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "[rank3]: RuntimeError: NPU out of memory. Tried to allocate 5.03 GiB (NPU 3; 60.96 GiB total capacity; 49.47 GiB already allocated; 49.47 GiB current active; 1.32 GiB free; 57.55 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.",
                source="xingchensong/TouchNet#100",
                says=(
                    "1.32 GiB free of 60.96 GiB",
                    "smaller batch",
                ),
            ),
            Example(
                '  File "/usr/local/python3.10.13/lib/python3.10/site-packages/transformers/modeling_utils.py", line 936, in _load_state_dict_into_meta_model\n'
                "    set_module_tensor_to_device(model, param_name, param_device, **set_module_kwargs)\n"
                '  File "/usr/local/python3.10.13/lib/python3.10/site-packages/accelerate/utils/modeling.py", line 400, in set_module_tensor_to_device\n'
                "    new_value = value.to(device)\n"
                "RuntimeError: NPU out of memory. Tried to allocate 386.00 MiB (NPU 2; 60.97 GiB total capacity; 59.57 GiB already allocated; 59.57 GiB current active; 16.54 MiB free; 60.06 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.\n"
                "Loading checkpoint shards:  42%|██████████████████████████████████████▋                                                     | 16/38 [00:14<00:19,  1.13it/s]",
                source="hiyouga/LlamaFactory#5491",
                says=("no batch helps",),
            ),
            Example(
                "RuntimeError: NPU out of memory. Tried to allocate 508.00 MiB (NPU 0; 60.97 GiB total capacity; 58.51 GiB already allocated;"
                " 58.51 GiB current active; 217.52 MiB free; 59.18 GiB reserved in total by PyTorch)",
                says=("508.00 MiB", "217.52 MiB free of 60.97 GiB", "PYTORCH_NPU_ALLOC_CONF"),
            ),
            Example(
                "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 48.00 GiB.",
                says=("XPU", "xpu-smi"),
            ),
        ),
        knowledge="torch_npu, torch.xpu: caching allocators",
    ),
    Failure(
        id="hardware.tpu_hbm",
        kind=LogClass.OOM,
        what="A TPU has no memory left, or a program does not fit into it.",
        signs=(
            sign(
                "RESOURCE_EXHAUSTED",
                r"RESOURCE_EXHAUSTED: [\s\S]{0,200}?(?:Ran out of memory in memory space hbm[\s\S]{0,60}?Used (?P<used>[\d.]+\w) of (?P<total>[\d.]+\w)"
                r" hbm|(?P<vmem>Ran out of memory in memory space vmem)|Attempting to (?:allocate|reserve) (?P<asked>[\d.]+\w+))",
            ),
        ),
        headline=lambda case: (
            f"The program needs {case.given['used']} of the TPU's {case.given['total']} HBM"
            if case.given.get("used")
            else "A kernel needs more of the TPU's VMEM (on-chip memory) than there is"
            if case.given.get("vmem")
            else f"The TPU has no room for {case.given['asked']} of HBM"
        ),
        why=lambda case: (
            "XLA found it when it compiled the program"
            if case.given.get("vmem")
            else "XLA plans the memory of a whole step when it compiles it; its message usually lists the largest tensors"
            if case.given.get("used")
            else "the request came at run time: what is on the chip already (parameters, optimizer, results that are kept) leaves no room"
        ),
        next=(
            Advice(
                "make the blocks of the kernel smaller (block sizes of flash attention or Pallas), or allow more:"
                " LIBTPU_INIT_ARGS=--xla_tpu_scoped_vmem_limit_kib=N",
                when=lambda case: bool(case.given.get("vmem")),
            ),
            Advice(
                "use a smaller batch for each chip, recompute activations (checkpointing in the layers' scan), bf16, or shard over more chips",
                when=lambda case: not case.given.get("vmem"),
            ),
            Advice(
                "look at the largest allocations, if the message lists them: padded shapes (a last dimension below 128)"
                " can cost much",
                when=lambda case: not case.given.get("vmem"),
            ),
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "Model Contain  1.100048384  Billion Parameters\n"
                "  0%|                                                                                                | 0/12000 [00:00<?, ?it/s]jax.errors.SimplifiedTraceback: For simplicity, JAX has removed its internal frames from the traceback of the following exception. Set JAX_TRACEBACK_FILTERING=off to include these.\n"
                "\n"
                "The above exception was the direct cause of the following exception:\n"
                "\n"
                "Traceback (most recent call last):\n"
                '  File "/home/user/research/EasyDeL/1.py", line 101, in <module>\n'
                '    output = trainer.train(flax.core.FrozenDict({"params": params}))\n'
                '  File "/home/user/research/EasyDeL/.venv/lib/python3.10/site-packages/EasyDel/trainer/causal_language_model_trainer.py", line 708, in train\n'
                "    sharded_state, loss, accuracy = self.sharded_train_step_fn(\n"
                "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 21.90G of 7.48G hbm. Exceeded hbm capacity by 14.42G.",
                source="erfanzar/EasyDeL#78",
                says=("21.90",),
            ),
            Example(
                "RuntimeError: Bad StatusOr access: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space vmem.",
                source="pytorch/xla#9524",
                says=("VMEM",),
            ),
        ),
        knowledge="Cloud TPU: performance guide; XLA",
    ),
    Failure(
        id="hardware.host_memory_error",
        kind=LogClass.HARDWARE,
        what="The memory or the processor of a node reported an error.",
        signs=(
            sign("Hardware Error", r"mce: \[Hardware Error\]: [^\n]{0,160}"),
            sign("HANDLING MCE MEMORY ERROR"),
            sign("Uncorrected", r"EDAC \w+: [^\n]{0,40}\bUE\b|Uncorrected hardware memory error"),
            sign("Machine Check Exception"),
        ),
        headline="The node's memory or processor reported a hardware error (machine check)",
        why="the processor found an error in its caches, its memory or a bus; uncorrected ones (UE) end or damage programs on this node",
        next=(
            "if it is uncorrected, drain the node and report it; `ras-mc-ctl --errors`, `ipmitool sel list` or"
            " `edac-util` name the memory module",
            "resume from the last checkpoint on other nodes; corrected errors alone (CE) are no failure, but watch their number",
        ),
        explains=_ALL,
        tier=Tier.HARDWARE,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "Feb 23 03:28:16 kernel: mce: [Hardware Error]: Machine check events logged\n"
                "Feb 23 03:28:16 kernel: EDAC sbridge MC1: HANDLING MCE MEMORY ERROR\n"
                "Feb 23 03:28:16 kernel: EDAC sbridge MC1: CPU 1: Machine Check Event: 0 Bank 11: 8c00004f000800c2\n"
                "Feb 23 03:28:16 kernel: EDAC MC1: 1 CE memory scrubbing error on CPU_SrcID#1_Ha#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0xee30a0 offset:0x0 grain:32 syndrome:0x0 -  area:DRAM err_code:0008:00c2 socket:1 ha:0 channel_mask:1 rank:0)",
                source="radiasoft/devops#134",
            ),
            Example(
                "[May19 19:57] CMCI storm detected: switching to poll mode\n"
                "[  +0.000127] mce: [Hardware Error]: Machine check events logged\n"
                "[  +0.000013] EDAC skx MC3: HANDLING MCE MEMORY ERROR\n"
                "[  +0.000001] EDAC skx MC3: CPU 10: Machine Check Event: 0 Bank 8: fc00010001010092\n"
                "[  +0.000006] EDAC MC3: 1 UE memory read error on CPU_SrcID#1_MC#1_Chan#2_DIMM#0 (channel:2 slot:0 page:0xb757589 offset:0xdc0 grain:32 -  OVERFLOW",
                source="ovro-lwa/lwa-issues#117",
            ),
        ),
        knowledge="Linux: x86 machine check, EDAC",
    ),
    Failure(
        id="hardware.ascend_hccl_timeout",
        kind=LogClass.COLLECTIVE_TIMEOUT,
        what="A rank on an Ascend NPU waited in vain for another one.",
        signs=(
            sign(
                "Notify register",
                r"EI0002: [\s\S]{0,300}?Notify register times out(?:[\s\S]{0,200}?remote rank: ?\[(?P<peer>\d+)\])?",
            ),
            sign("Getting socket times out", r"EI0006: [\s\S]{0,200}?Getting socket times out"),
        ),
        headline=lambda case: (
            f"HCCL: {who(case.ranks)} waited in vain for rank {case.given['peer']}"
            if case.given.get("peer")
            else "HCCL: ranks could not connect in time (EI0006)"
            if "EI0006" in text_of(case.lead)
            else "HCCL: a rank waited in vain for another one (EI0002)"
        ),
        why="the rank that prints this waits; the one that it waits for failed before, is slow, has fewer batches, or"
        " cannot be reached",
        next=(
            lambda case: (
                "read the log of "
                + (f"rank {case.given['peer']}" if case.given.get("peer") else "each rank that did not print this line")
                + " for an earlier error: that one is then the cause"
            ),
            "if it was only slow (compilation, loading, tokenization), wait longer: HCCL_EXEC_TIMEOUT for a collective,"
            " HCCL_CONNECT_TIMEOUT=1200 for the first connection",
            "check that all ranks have equally many batches, and the links of the NPUs (hccn_tool -i 0 -link -g)",
        ),
        tier=Tier.TIMEOUT,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "EI0002: [PID: 2969] 2025-10-11-15:09:34.713.335 The wait execution of the Notify register times out. Reason: The"
                " Notify register has not received the Notify record from remote rank: [24].",
                source="vllm-project/vllm-ascend#3413",
                says=("rank 24", "HCCL_EXEC_TIMEOUT"),
            ),
            Example(
                "EI0006: [PID: 1292363] 2025-04-08-18:07:20.444.436 Getting socket times out. Reason: Remote Rank did not send the"
                " data in time. Please check the reason for the rank being stuck",
                source="vllm-project/vllm-ascend#486",
                says=("EI0006", "HCCL_CONNECT_TIMEOUT"),
            ),
        ),
        knowledge="Ascend: HCCL fault codes EI0002, EI0006",
    ),
    Failure(
        id="hardware.ascend_stream_timeout",
        kind=LogClass.CRASHED,
        what="Work on an Ascend NPU did not end within a time limit.",
        signs=(
            sign("stream sync timeout"),
            sign("all tasks in the specified stream are not completed"),
        ),
        headline="NPU: work in a stream did not end within the time limit",
        why="a rank waits for another one that is late or has failed, a kernel hangs, or the limit is too short for what was given",
        next=(
            "read the plog of all ranks (~/ascend/log, ASCEND_GLOBAL_LOG_LEVEL=1): an earlier error on another rank is"
            " then the cause",
            "if ranks were only slow (loading, saving, validation on one rank): let them wait longer, HCCL_EXEC_TIMEOUT and the timeout"
            " of init_process_group",
            "check the links of the NPUs (hccn_tool -i 0 -link -g)",
        ),
        tier=Tier.TIMEOUT,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "EE1002: 2024-09-03-16:50:00.041.231 Stream synchronize timeout. rtDeviceSynchronize execute failed, reason=[stream"
                " sync timeout]",
                source="Ascend/pytorch#48",
                says=("plog", "HCCL_EXEC_TIMEOUT"),
            ),
        ),
        knowledge="Ascend: runtime error EE1002, 507046",
    ),
    Failure(
        id="hardware.ascend_kernel",
        kind=LogClass.CRASHED,
        what="A kernel or the runtime of an Ascend NPU failed, and the error is reported later, at another line.",
        signs=(
            sign(
                "exception]",
                r"\[(?P<unit>aicore|aicpu|vector core|fftsplus\w*) exception\]",
            ),
            sign("aicore error", r"exception of (?:fftsplus )?(?P<unit>aicore) error"),
            sign(
                "Inner Error", r"(?P<code>E[A-Z]\d{4}|ERR\d{5}):? ?(?:\[PID: ?\d+\])?[^\n]{0,80}?Inner Error(?P<unit>)"
            ),
            sign("The Inner error is reported as above", r"The Inner error is reported as above(?P<unit>)"),
            sign(
                "NPU error", r"(?:NPU function error|NPU error)[^\n]{0,200}?error code is:? ?(?P<number>\d+)(?P<unit>)"
            ),
        ),
        headline=lambda case: (
            f"A kernel of the Ascend NPU failed ({case.given['unit']} exception)"
            if case.given["unit"]
            else f"The runtime of the Ascend NPU failed ({case.given['code']})"
            if case.given.get("code")
            else f"The runtime of the Ascend NPU failed (error code {case.given['number']})"
            if case.given.get("number")
            else "The Ascend NPU reported an inner error, whose text it printed above"
        ),
        why="kernels run beside the program, so the line of the traceback need not be the one that started it; EZ9999 and its"
        " like are the same for many causes",
        next=(
            "run once with ASCEND_LAUNCH_BLOCKING=1: the traceback then names the operation; check its indices, shapes and dtypes"
            " on the CPU",
            "read the lines `errorStr`, `Reason` or `TraceBack` of the message, and the newest file in ~/ascend/log/debug/plog",
            "compare the versions of driver, firmware, CANN and torch_npu with the table of torch_npu's README: after an update of"
            " one, operators often fail so",
        ),
        check="npu-smi info (Health must be OK)",
        rules_out="an error of HCCL (EI0002, EI0006) or of memory above it",
        tier=Tier.NATIVE_CRASH,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: Run:/usr1/workspace/Plugin/torch_npu/csrc/framework/OpParamMaker.cpp:128 NPU error,NPU error code"
                " is:100000\n"
                "EZ9999: Inner Error, Please contact support engineer!\n"
                "EZ9999 Kernel task happen error, retCode=0x2a, [aicpu exception].[FUNC:PreCheckTaskErr][FILE:task.cc][LINE:1068]",
                source="open-mmlab/mmcv#3203",
                says=("aicpu", "ASCEND_LAUNCH_BLOCKING=1"),
            ),
            Example(
                "EH9999: Inner Error!\nEH9999  [Init][Env]init env failed![FUNC:ReportInnerError][FILE:log_inner.cpp][LINE:145]",
                source="Ascend/pytorch#7",
                says=("EH9999",),
            ),
            Example(
                "RuntimeError: The Inner error is reported as above.\n Since the operator is called asynchronously, the stacktrace"
                " may be inaccurate.",
                source="hiyouga/LlamaFactory#3670",
                says=("above",),
            ),
        ),
        knowledge="torch_npu's FAQ; CANN's error codes",
    ),
    Failure(
        id="hardware.ascend_previous_run",
        kind=LogClass.STARTUP,
        what="An earlier process still holds an Ascend NPU.",
        signs=(sign("Failed to initialize the HCCP process"),),
        headline="HCCP, the Ascend NPU's communication process, could not start (EJ0001)",
        why="most often an earlier process still holds the card: HCCP ends some seconds after its program",
        next=(
            "end an earlier process if npu-smi info shows one, wait 10 s and start again",
            "check that no two ranks use the same NPU (ASCEND_RT_VISIBLE_DEVICES)",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "EJ0001: 2024-05-21-11:57:54.167.645 Failed to initialize the HCCP process. Reason: Maybe the last training process"
                " is running.",
                source="hiyouga/LlamaFactory#3839",
                says=("npu-smi",),
            ),
        ),
        knowledge="hiyouga/LlamaFactory#3839",
    ),
    Failure(
        id="hardware.tpu_in_use",
        kind=LogClass.STARTUP,
        what="Another process holds the TPU.",
        signs=(
            sign(
                "TPU is already in use",
                r"TPU is already in use by (?:process with pid|another process)(?: (?P<pid>\d+))?",
            ),
            sign("TPU", r"(?:libtpu|TPU)[^\n]{0,120}Device or resource busy"),
        ),
        headline=lambda case: (
            f"The TPU is in use by another process{' (pid ' + pid + ')' if (pid := case.given.get('pid')) else ''}"
        ),
        why="a TPU serves one process at a time",
        next=(
            "end that process (sudo lsof -w /dev/accel0 names it; often an earlier run or a notebook), and remove"
            " /tmp/libtpu_lockfile",
            "initialise it once for each process: no torch_xla call before xmp.spawn",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: Unable to initialize backend 'tpu': ABORTED: The TPU is already in use by process with pid 2718466. Not attempting to load libtpu.so in this process. (set JAX_PLATFORMS='' to automatically choose an available backend)\n"
                "2026-03-03 05:28:44 - WARNING - [sgl_jax.srt.entrypoints.engine] Child process unexpectedly failed with exitcode=256. pid=2720317",
                source="sgl-project/sglang-jax#857",
                says=("2718466",),
            ),
            Example(
                "RuntimeError: TPU initialization failed: open(/dev/accel0): Operation not permitted: Device or resource busy;"
                " Couldn't open device: /dev/accel0",
                says=("lsof",),
            ),
            Example(
                "The TPU is already in use by process with pid 23212. Not attempting to load libtpu.so in this process.",
                says=("23212",),
            ),
        ),
        knowledge="Cloud TPU: troubleshooting",
    ),
    Failure(
        id="hardware.fp64_missing",
        kind=LogClass.CRASHED,
        what="A kernel needs float64, which this Intel GPU does not have.",
        signs=(
            sign("uses-fp", r"invalid_kernel\(\"uses-fp64"),
            sign("is not supported on the device", r"Required aspect fp64 is not supported on the device"),
            sign("Double type is not supported on this platform"),
        ),
        headline="This Intel GPU has no float64, and an operation uses it{place}",
        why="Arc and integrated GPUs lack double precision; NumPy arrays, torch.linspace or arange with dtype=float64, some"
        " positional encodings and scalar arguments bring it in",
        next=(
            "make it float32 before it reaches the GPU: tensor.float(), np.float32, dtype=torch.float32 (fused=False for the"
            " optimizer if it is raised in step())",
            "or emulate it (slow): OverrideDefaultFP64Settings=1 IGC_EnableDPEmulation=1 in the environment; newer PyTorch"
            " avoids it in more operations",
        ),
        check='python -c "import torch; print(torch.xpu.get_device_properties(0))" (has_fp64)',
        rules_out="a missing driver",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: Native API failed. Native API returns: -996 (Function exists but address is not available)\n"
                'invalid_kernel("uses-fp64-math")\n'
                " -996 (Function exists but address is not available)",
                source="intel/intel-extension-for-pytorch#285",
                says=("float64", "float32"),
            ),
            Example(
                "RuntimeError: Required aspect fp64 is not supported on the device", says=("IGC_EnableDPEmulation",)
            ),
            Example(
                "error: Double type is not supported on this platform.",
                source="intel/intel-extension-for-pytorch#303",
            ),
        ),
        knowledge="oneAPI: device aspects; intel/intel-extension-for-pytorch#285",
    ),
    Failure(
        id="hardware.xpu_lost",
        kind=LogClass.CRASHED,
        what="The runtime of an Intel GPU failed.",
        signs=(
            sign(
                "UR_RESULT_ERROR",
                r"(?P<status>UR_RESULT_ERROR_(?:DEVICE_LOST|OUT_OF_RESOURCES|OUT_OF_DEVICE_MEMORY|OUT_OF_HOST_MEMORY))",
            ),
            sign("PI_ERROR", r"(?P<status>PI_ERROR_(?:DEVICE_LOST|OUT_OF_RESOURCES|DEVICE_NOT_AVAILABLE))"),
        ),
        headline=lambda case: (
            f"The Intel GPU was lost ({case.given['status']})"
            if "LOST" in case.given["status"]
            else f"The Intel GPU lacks resources for a kernel or tensor ({case.given['status']})"
        ),
        why=lambda case: (
            "the driver gave the GPU up or reset it: most often a kernel hung or faulted, or memory ran short"
            if "LOST" in case.given["status"]
            else "this may be memory, and also registers, scratch space or a fault of the driver"
        ),
        next=(
            lambda case: (
                "read `dmesg -T | grep -iE 'i915|xe '` for a hang or reset, and update the GPU's driver and PyTorch"
                if "LOST" in case.given["status"]
                else "use a smaller batch; for one tensor of more than 4 GiB set UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS=1"
            ),
            lambda case: (
                "try once with less memory (a smaller batch or model): a nearly full GPU or host ends in this error, too"
                if "LOST" in case.given["status"]
                else "if memory is free: update the GPU's driver, PyTorch and triton, and try one GPU (ZE_AFFINITY_MASK=0)"
            ),
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                '  File "D:\\comfy\\ComfyUI\\comfy\\model_management.py", line 1235, in soft_empty_cache\n'
                "    torch.xpu.empty_cache()\n"
                '  File "D:\\comfy\\ipex\\Lib\\site-packages\\intel_extension_for_pytorch\\xpu\\memory.py", line 22, in empty_cache\n'
                "    intel_extension_for_pytorch._C._emptyCache()\n"
                "RuntimeError: Native API failed. Native API returns: 20 (UR_RESULT_ERROR_DEVICE_LOST)",
                source="intel/intel-extension-for-pytorch#780",
                says=("lost",),
            ),
            Example(
                '[0] [rank0]:   File "/rds/project/test-dawn/.venv/lib64/python3.9/site-packages/mingpt/model.py", line 91, in forward\n'
                "[0] [rank0]:     x = x + self.attn(self.ln_1(x))\n"
                '[0] [rank0]:   File "/rds/project/test-dawn/.venv/lib64/python3.9/site-packages/torch/nn/modules/module.py", line 1784, in _call_impl\n'
                "[0] [rank0]:     return forward_call(*args, **kwargs)\n"
                '[0] [rank0]:   File "/rds/project/test-dawn/.venv/lib64/python3.9/site-packages/mingpt/model.py", line 62, in forward\n'
                "[0] [rank0]:     att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))\n"
                "[0] [rank0]: RuntimeError: UR backend failed. UR backend returns:40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)",
                source="intel/intel-extension-for-pytorch#838",
            ),
            Example(
                "RuntimeError: level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)",
                says=("lost", "dmesg"),
            ),
            Example(
                "RuntimeError: Native API failed. Native API returns: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)",
                says=("smaller batch",),
            ),
            Example(
                "RuntimeError: Native API failed. Native API returns: -5 (PI_ERROR_OUT_OF_RESOURCES) -5 (PI_ERROR_OUT_OF_RESOURCES)",
                says=("lacks resources",),
            ),
        ),
        knowledge="oneAPI: unified runtime, ur_result_t",
    ),
)


ENTRIES = (
    *XIDS,
    *DEVICES,
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
