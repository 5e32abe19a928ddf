"""The dashboard of the run that the terminal app shows, in a process of its own."""

import os
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO

from workbench.python_path import command, environment

ADDRESS = re.compile(r"https?://\S+(?=\s)")
LOOKED_S = 0.1
MOST_BYTES = 1 << 16


class Dashboard:
    """Runs `workbench serve` as long as the app does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process: subprocess.Popen[bytes] | None = None
        self._told = ""

    def open(self) -> str:
        """Start serving, and a browser if there is one; where the page is, in a sentence."""
        if self._process is None or self._process.poll() is not None:
            self._told = self._start()
        return self._told

    def close(self) -> None:
        """Serve no longer."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def _start(self) -> str:
        # A file and not a pipe: nobody reads on once the address is known, and a full pipe would halt the server.
        with tempfile.TemporaryFile() as told:
            self._process = subprocess.Popen(
                command("workbench", "serve", str(self._path), "--port", "0", "--open"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=told,
                env=environment(),
            )
            while self._process.poll() is None:
                if found := ADDRESS.search(text_of(told)):
                    return f"the dashboard is at {found[0]} until you leave"
                time.sleep(LOOKED_S)
            return f"no dashboard: {text_of(told).strip()}"


def text_of(file: IO[bytes]) -> str:
    """All that has been written; the place where its writer stands stays what it is."""
    return os.pread(file.fileno(), MOST_BYTES, 0).decode(errors="replace")
