"""The dashboard of the run that the terminal app shows, in a process of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

from workbench.launch.plan import PACKAGE_ROOT

ADDRESS = re.compile(r"https?://\S+")


class Dashboard:
    """Runs `workbench serve` as long as the app does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process: subprocess.Popen[str] | None = None
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
        paths = os.pathsep.join([str(PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "workbench", "serve", str(self._path), "--port", "0", "--open"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": paths},
        )
        assert self._process.stderr is not None, "it is a pipe"
        told = ""
        for told in self._process.stderr:
            if found := ADDRESS.search(told):
                return f"the dashboard is at {found[0]} until you leave"
        return f"no dashboard: {told.strip()}"
