"""Serve the dashboard of the run that the terminal app shows, from a separate process."""

import os
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO

from workbench.python_path import command, environment

# With a blank after it, because the file may be read in the middle of a write.
ADDRESS = re.compile(r"https?://\S+(?=\s)")
POLL_S = 0.1
_OUTPUT_BYTES = 1 << 16


class Dashboard:
    """Runs `workbench serve` in a separate process until the app ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process: subprocess.Popen[bytes] | None = None
        self._message = ""

    def open(self) -> str:
        """Start the server, open a browser if there is one, and return a sentence with the address of the dashboard."""
        if self._process is None or self._process.poll() is not None:
            self._message = self._start()
        return self._message

    def close(self) -> None:
        """Stop the server."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def _start(self) -> str:
        # A file and not a pipe: nobody reads it once the address is known, and a full pipe would stop the server.
        with tempfile.TemporaryFile() as output:
            self._process = subprocess.Popen(
                command("workbench", "serve", str(self._path), "--port", "0", "--open"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=output,
                env=environment(),
            )
            while self._process.poll() is None:
                if address := ADDRESS.search(_text_of(output)):
                    return f"the dashboard is at {address[0]} until you quit"
                time.sleep(POLL_S)
            return f"the dashboard did not start: {_text_of(output).strip()}"


def _text_of(file: IO[bytes]) -> str:
    """Return all text written to a file so far; the writer's position in the file does not change."""
    return os.pread(file.fileno(), _OUTPUT_BYTES, 0).decode(errors="replace")
