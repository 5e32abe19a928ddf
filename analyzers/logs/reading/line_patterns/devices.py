"""Define the patterns of log lines on devices and networks: CUDA errors, Xid and ECC, NCCL, InfiniBand, sockets."""

import re

from analyzers.case.facts import EventKind, Facts, Reason
from analyzers.logs.reading.line_patterns.pattern import Found, number, pattern, plain

_SOFTWARE_XIDS = {13, 31, 43, 45, 63, 68}
"""The Xids that a program can cause, or that only report consequences, according to NVIDIA's catalogue.

An Xid is the number by which NVIDIA's driver reports an error of a GPU or of a program on it.
"""
# Xid 45 only says that the driver cleaned up after an earlier error.
_CONSEQUENT_XIDS = {45}
BROKEN = ("uncorrectable ECC", "hardware stack error", "nvlink", "GPU is lost")
NO_GPU = ("no CUDA-capable device", "busy or unavailable", "initialization failed", "driver version", "no kernel image")
_NCCL_INVALID = "invalid usage"


def xid(match: "re.Match[str]") -> Found | None:
    """Return the event for an Xid, the number by which NVIDIA's driver reports an error of a GPU or of a program on it.

    The result is None for an Xid that is only a consequence of another one.
    """
    code = number(match[2])
    if code is None or code in _CONSEQUENT_XIDS:
        return None
    is_software = code in _SOFTWARE_XIDS
    facts = Facts(reason=Reason.XID_SOFTWARE if is_software else Reason.XID, xid=code, pci=match[1], name=match[3])
    pid = re.search(r"pid='?(\d{1,9})", match[3])
    facts = facts if not pid else _with_pid(facts, int(pid[1]))
    return Found(EventKind.HARDWARE, facts)


def _with_pid(facts: Facts, pid: int) -> Facts:
    """Return the facts of an Xid, with the id of the process that used the device added."""
    return Facts(reason=facts.reason, xid=facts.xid, pci=facts.pci, name=facts.name, pid=pid)


def _lost_device(match: "re.Match[str]") -> Found:
    """Return the event for a device that the driver can no longer reach, with its PCI address if printed.

    The driver's message begins with `NVRM: The NVIDIA GPU <address>`. Only the next lines show the problem: the device
    fell off the bus, or the driver does not support it.
    """
    pci = re.search(r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)", match.string)
    return Found(EventKind.HARDWARE, Facts(reason=Reason.FALLEN_OFF_BUS, pci=pci[1] if pci else None))


def unsupported_device(match: "re.Match[str]") -> Found:
    """Return the event for a device that the installed driver does not support.

    `facts.name` is the name by which the driver calls itself.
    """
    return Found(EventKind.STARTUP, Facts(reason=Reason.UNSUPPORTED_DEVICE, name=match[1].strip() or None))


_RAISED = re.compile(
    r"(?:\w(?:Error|Exception)|what\(\)|exception):?$|^\[(?:rank ?\d|default\d|PG |[EWIF]\d{3}|\d)|NCCL|"
    r"^\w+\.(?:cpp|cu|h)\b",
    re.IGNORECASE,
)
"""Matches the text that Python, C++ and NCCL put before an uncaught error; any other text is printed by the program."""


def cuda_error(match: "re.Match[str]") -> Found:
    """Return the event for a CUDA error.

    It is a hardware error or a failed start if the text shows this. CUDA reports errors later than they happen, so the
    program's line in the log shows little about the cause.
    """
    text = match[1].strip()
    if any(word in text for word in BROKEN):
        return Found(EventKind.HARDWARE, Facts(reason=Reason.ECC, name=text))
    if any(word in text for word in NO_GPU):
        return Found(EventKind.STARTUP, Facts(reason=Reason.DRIVER if "driver" in text else Reason.NO_GPU, name=text))
    asserts = Reason.DEVICE_ASSERT if "device-side assert" in text else None
    before = match.string[: match.start()].rpartition("\n")[2].strip()
    return Found(
        EventKind.CUDA_ERROR, Facts(reason=asserts, name=text, caught=bool(before and not _RAISED.search(before)))
    )


def device_assert(match: "re.Match[str]") -> Found:
    """Return the event for an assertion that failed in a CUDA kernel, with the asserted condition.

    Thousands of threads of the kernel may print this message.
    """
    return Found(EventKind.CUDA_ERROR, Facts(reason=Reason.DEVICE_ASSERT, name=match[1]))


def nccl_error(match: "re.Match[str]") -> Found:
    """Return the event for an NCCL error.

    If the text says that a remote process exited, it is a lost connection.
    """
    text = match[1]
    if "remote process exited" in text:
        return Found(EventKind.CONNECTION_LOST, Facts(reason=Reason.PEER_GONE))
    return Found(EventKind.NCCL_ERROR, Facts(name=text.strip()))


def refused(match: "re.Match[str]") -> Found:
    """Return the event that reports a failed connection; `facts.peer` is the address that did not accept it."""
    facts = Facts(reason=Reason.REFUSED, peer=match[1], port=number(match[2]), name=match[3])
    return Found(EventKind.NETWORK, facts)


def infiniband(match: "re.Match[str]") -> Found | None:
    """Return the event that reports a failed InfiniBand completion.

    The result is None for status 5, which only says that an earlier completion failed.
    """
    status = re.search(r"(?:status=|with error |\()(\d{1,3})", match.string[match.start() :])
    code = number(status[1]) if status else None
    peer = re.search(r"peer (\d+\.\d+\.\d+\.\d+|[0-9a-fA-F:]+|[\w.-]+)<(\d+)>", match.string)
    host = re.match(r"([\w.-]+):\d+:\d+ \[\d+\]", match.string)
    facts = Facts(
        reason=Reason.INFINIBAND,
        host=host[1] if host else None,
        status=code,
        peer=peer[1] if peer else None,
        port=number(peer[2]) if peer else None,
    )
    return None if code == 5 else Found(EventKind.NETWORK, facts)


def nccl_versions(match: "re.Match[str]") -> Found:
    facts = Facts(reason=Reason.NCCL_VERSIONS, ranks=[int(match[1]), int(match[3])], name=f"{match[2]} and {match[4]}")
    return Found(EventKind.STARTUP, facts)


def duplicate_gpu(match: "re.Match[str]") -> Found:
    """Return the event that reports two ranks that use the same device."""
    return Found(EventKind.STARTUP, Facts(reason=Reason.DUPLICATE_GPU, ranks=[int(match[1]), int(match[2])]))


def driver_too_old(match: "re.Match[str]") -> Found:
    """Return the event that reports an NVIDIA driver that is older than PyTorch needs, with its version."""
    return Found(EventKind.STARTUP, Facts(reason=Reason.DRIVER, name=match[1]))


HARDWARE, STARTUP = EventKind.HARDWARE, EventKind.STARTUP
PATTERNS = (
    pattern("NVRM: Xid", r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d{1,4}),? ?(.{0,200})", xid),
    pattern("fallen off the bus", r"fallen off the bus", _lost_device),
    pattern("Unable to determine the device handle", r"Unable to determine the device handle", _lost_device),
    pattern("NVRM:", r"\bNVRM: .{0,80}\bis not supported by (.{0,80})", unsupported_device),
    pattern(
        "ECC error",
        r"()(?:[Uu]ncorrectable|[Dd]ouble.?[Bb]it) (?:\(?volatile\)? )?ECC error",
        lambda _: Found(EventKind.HARDWARE, Facts(reason=Reason.ECC, name="uncorrectable ECC error")),
    ),
    pattern("driver on your system is too old", r"too old \(found version (\d+)\)", driver_too_old),
    plain("Found no NVIDIA driver", STARTUP, Reason.DRIVER),
    plain("driver version is insufficient", STARTUP, Reason.DRIVER),
    plain("library version mismatch", STARTUP, Reason.DRIVER, r"Driver/library version mismatch"),
    plain("unsupported display driver", STARTUP, Reason.DRIVER),
    plain("no kernel image is available", STARTUP, Reason.NO_GPU),
    plain("no CUDA-capable device", STARTUP, Reason.NO_GPU),
    plain("CUDA-capable devices are busy", STARTUP, Reason.NO_GPU, r"busy or unavailable"),
    plain("No CUDA GPUs are available", STARTUP, Reason.NO_GPU),
    plain("invalid device ordinal", STARTUP, Reason.NO_GPU),
    pattern("CUDA error:", r"CUDA error: ([^\n]{1,160})", cuda_error),
    # Markup may have taken the quotes.
    pattern("Assertion ", r"thread: \[[\d,]{1,40}\] Assertion `?([^`\n]{1,200}?)`? failed", device_assert),
    pattern(".cu:", r"\.cu:\d+: .*?Assertion `([^`]{1,200})` failed", device_assert),
    pattern("NET/IB", r"NET/IB ?: (?:\S+ )?(?:Got completion|.*?[Cc]ompletion.*?(?:error|status))", infiniband),
    plain("async fatal event", HARDWARE, Reason.LINK, r"NET/IB.*async fatal event"),
    plain("async event: port error", HARDWARE, Reason.LINK),
    plain("ibv_", EventKind.NETWORK, Reason.INFINIBAND, r"(?:Call to )?ibv_\w+ (?:\(.*?\) )?failed"),
    plain("no socket interface found", STARTUP, Reason.NO_INTERFACE),
    plain("No usable listening interface", STARTUP, Reason.NO_INTERFACE),
    plain("Unable to find address for", STARTUP, Reason.NO_INTERFACE),
    pattern(
        "Mismatched NCCL version",
        r"rank (\d{1,9}) version (\S{1,40}) rank (\d{1,9}) version (\S{1,40})",
        nccl_versions,
    ),
    pattern("Duplicate GPU detected", r"rank (\d{1,9}) and rank (\d{1,9}) both", duplicate_gpu),
    pattern("onnect to", r"[Cc]onnect to ([\w.:-]+)<(\d+)> failed ?: ?([\w ]{1,60})", refused),
    pattern("NCCL error in", r"NCCL error in: [^,]{1,300}, ([^,\n]{1,160})", nccl_error),
)
