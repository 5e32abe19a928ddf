"""Save reports about the node when dumps are taken: NCCL's RAS, GPU errors in the kernel log, and `nvidia-smi`.

A report that is not available is left out. This module uses only the standard library, because it runs in the
collector, a process outside of the ranks.
"""

import contextlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from workbench.recorders.files import write_bytes

_RAS_ADDRESS = "localhost:28028"
_RAS_VARIABLE = "NCCL_RAS_ADDR"
"""The environment variable with the address at which NCCL's RAS threads (NCCL 2.24 and newer) answer clients."""
RAS_TIMEOUT_S = 8.0
SMI_TIMEOUT_S = 10.0
_OUTPUT_BYTES = 4 << 20
KERNEL_LOG = Path("/dev/kmsg")
RECORD_BYTES, _MOST_RECORDS, _MOST_LINES = 8192, 100_000, 500
_BEFORE_START_S = 60.0


def save_in_background(folder: Path, set_folder: Path, since_s: float) -> threading.Thread:
    """Save the node's reports on NCCL and GPUs (see `save`) in a thread, and return this thread.

    Only the lines of the kernel log since the Unix time `since_s` are read: older errors belong to other jobs.
    """
    thread = threading.Thread(target=save, args=[folder, set_folder, since_s], daemon=True)
    thread.start()
    return thread


def save(folder: Path, set_folder: Path, since_s: float) -> None:
    """Save NCCL's report on the job in `set_folder`, and the reports on the GPUs in `folder`/health.

    `set_folder` is the folder of the dumps, `folder` the run folder. GPU errors are those in the kernel log since the
    Unix time `since_s`. A report that is not available is left out.
    """
    host = socket.gethostname()
    # A device that hangs can keep a reader waiting: the others must not wait for it.
    for name, text in (
        (set_folder / f"nccl_ras_{host}.txt", ras_status),
        (folder / "health" / f"dmesg_{host}.txt", lambda: gpu_errors(since_s)),
        (folder / "health" / f"nvidia_smi_{host}.txt", device_state),
    ):
        # ValueError: an address of RAS without a port.
        with contextlib.suppress(OSError, OverflowError, ValueError, subprocess.SubprocessError):
            if content := text():
                write_bytes(name, content)


def ras_status() -> bytes:
    """Return what NCCL's status server on this node says about the communicators of the job.

    NCCL calls it RAS server (since 2.24, see its documentation on `ncclras`).

    Raises:
        OSError: No such server listens here.
    """
    host, _, port = os.environ.get(_RAS_VARIABLE, _RAS_ADDRESS).rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), RAS_TIMEOUT_S) as connection:
        connection.settimeout(RAS_TIMEOUT_S)
        connection.sendall(b"verbose status\n")
        content = b""
        with contextlib.suppress(TimeoutError):
            while len(content) < _OUTPUT_BYTES and (part := connection.recv(1 << 16)):
                content += part
        return content


def device_state() -> bytes:
    return subprocess.run(["nvidia-smi", "-q"], capture_output=True, timeout=SMI_TIMEOUT_S, check=False).stdout


def gpu_errors(since_s: float) -> bytes:
    """Return the lines of NVIDIA's driver in the kernel log since the Unix time `since_s`, like `dmesg -T`."""
    booted_s = time.time() - time.monotonic()
    lines = [
        f"[{time.asctime(time.localtime(booted_s + uptime_s))}] {message}\n"
        for uptime_s, message in _kernel_records(KERNEL_LOG)
        if "NVRM" in message and booted_s + uptime_s >= since_s - _BEFORE_START_S
    ]
    return "".join(lines[-_MOST_LINES:]).encode()


def _kernel_records(path: Path) -> Iterator[tuple[float, str]]:
    """Yield (seconds since boot, message) of each record in the kernel log, in the order in which they were written.

    Times need not ascend: each processor takes them from a clock of its own. `path` is the device file of the log,
    `/dev/kmsg`, of which each read returns one record.
    """
    log = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        for _ in range(_MOST_RECORDS):
            try:
                record = os.read(log, RECORD_BYTES)
            except BrokenPipeError:  # the oldest records were overwritten meanwhile
                continue
            except BlockingIOError:
                return
            if not record:
                return
            # `6,339,5140900,-;NVRM: ...`, and further lines with more about the device.
            head, _, message = record.decode(errors="replace").partition(";")
            fields = head.split(",")
            if len(fields) > 2 and fields[2].isdigit():
                yield int(fields[2]) / 1e6, message.partition("\n")[0]
    finally:
        os.close(log)
