"""Start senders and receivers of `workbench collect` in tests."""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60


def free_port() -> int:
    """Return a port of this machine on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a command, without a token of the user."""
    kept = {name: value for name, value in os.environ.items() if name != "WORKBENCH_TOKEN"}
    return kept | {"PYTHONPATH": str(ROOT)} | more


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; fail after a minute."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
