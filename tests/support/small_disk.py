"""Give this process a small disk of its own, in namespaces of users and mounts; any user may do that on most systems.

python small_disk.py FOLDER BYTES COMMAND...    runs a command with a small disk on FOLDER
"""

import ctypes
import os
import sys
from pathlib import Path

NEW_MOUNTS, NEW_USERS = 0x00020000, 0x10000000
READ_ONLY, REMOUNT = 1, 32
NOT_PERMITTED = 77
"""The exit status where the system does not permit such namespaces."""


def mount(folder: Path, size: int) -> None:
    """Mount an empty file system in memory on `folder`, which only this process and its children see.

    The process must not have other threads. It ends with `NOT_PERMITTED` if that is impossible here.
    """
    libc, user, group = ctypes.CDLL(None), os.getuid(), os.getgid()
    if libc.unshare(NEW_USERS | NEW_MOUNTS):
        os._exit(NOT_PERMITTED)
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    except OSError:
        os._exit(NOT_PERMITTED)
    if libc.mount(b"none", os.fsencode(folder), b"tmpfs", 0, f"size={size}".encode()):
        os._exit(NOT_PERMITTED)


def make_read_only(folder: Path) -> None:
    """Make the small disk on `folder` read-only; no file on it may be open for writing."""
    if ctypes.CDLL(None).mount(b"none", os.fsencode(folder), b"tmpfs", REMOUNT | READ_ONLY, None):
        os._exit(NOT_PERMITTED)


def fill(folder: Path) -> None:
    """Write to the disk until not a byte fits."""
    file = os.open(folder / "fill", os.O_WRONLY | os.O_CREAT)
    size = 1 << 16
    while size:
        try:
            os.write(file, bytes(size))
        except OSError:
            size //= 2
    os.close(file)


if __name__ == "__main__":
    mount(Path(sys.argv[1]), int(sys.argv[2]))
    os.execvp(sys.argv[3], sys.argv[3:])
