"""The processes that read for this one."""

import contextlib
import os
import signal
from pathlib import Path


def end_children() -> None:
    """End them, so that nobody waits for what nobody wants to see any more. Linux tells who they are."""
    for listing in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for pid in listing.read_text().split():
                os.kill(int(pid), signal.SIGKILL)
