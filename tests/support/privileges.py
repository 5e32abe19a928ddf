"""Run a child process without the privileges of root, so that the permissions of files hold for it, too."""

import ctypes
import os

PR_SET_SECUREBITS, SECBIT_NOROOT = 28, 1
CAPABILITY_VERSION = 0x20080522


def drop():
    """Give up all capabilities of this process, for what it starts as well; other users have none to give up."""
    if os.geteuid() != 0:
        return
    system = ctypes.CDLL(None, use_errno=True)
    # Otherwise a program that root starts has all of them again.
    if system.prctl(PR_SET_SECUREBITS, SECBIT_NOROOT, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "securebits")
    if system.capset((ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()):
        raise OSError(ctypes.get_errno(), "capset")
