"""Install a wheel with uv and pipx, as the README says, and try the installed command."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
PIPX = "pipx==1.18.4"


def run(*words: str | Path, **settings: str) -> str:
    """Run a command outside the working tree, and return its output.

    Raises:
        subprocess.CalledProcessError: The command failed.
    """
    environment = {**os.environ, "UV_PYTHON_DOWNLOADS": "never", **settings}
    environment.pop("PYTHONPATH", None)
    environment.pop("VIRTUAL_ENV", None)
    ended = subprocess.run([*map(str, words)], cwd="/", env=environment, capture_output=True, text=True, check=True)
    return ended.stdout


def uv() -> str:
    return shutil.which("uv") or "uv"


def install_once(wheel: Path, readers: str = "used") -> Iterator[str]:
    """Install the wheel without torch for this Python; yield what worked.

    `readers` is what `workbench doctor` must say about the native readers.

    Raises:
        subprocess.CalledProcessError: Something failed.
        RuntimeError: Something printed another answer than expected.
    """
    with tempfile.TemporaryDirectory() as home:
        run(uv(), "--quiet", "venv", "--python", sys.executable, home)
        python = Path(home) / "bin" / "python"
        run(uv(), "--quiet", "pip", "install", "--python", python, "--constraint", ROOT / "constraints.txt", wheel)
        run(uv(), "--quiet", "pip", "check", "--python", python)
        yield f"Python {sys.version_info.major}.{sys.version_info.minor}"
        command = Path(home) / "bin" / "workbench"
        if f'"native_readers": "{readers}"' not in (said := run(command, "doctor", "--json")):
            raise RuntimeError(f"the native readers are not: {readers}\n{said}")
        yield f"native readers {readers}"
        yield from answers(command, Path(home) / "cache")
        library = (
            "import analyzers.memory, importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is not None)"
        )
        run(python, "-c", library)
        yield "import analyzers.memory, and no torch"
        yield from shared(Path(home) / "share")


def answers(command: Path, cache: Path) -> Iterator[str]:
    """Try the installed command; yield what worked.

    Raises:
        RuntimeError: It does not say what is wrong with a recorded run.
    """
    settings = {"WORKBENCH_CACHE": str(cache)}
    yield run(command, "--version", **settings).strip()
    for words, expected in (
        (("inspect", FIXTURES / "oom_2ranks", "--json"), '"class": "oom"'),
        (("hang", FIXTURES / "stuck_2ranks", "--json"), '"class": "host_stuck"'),
    ):
        if expected not in run(command, *words, **settings):
            raise RuntimeError(f"workbench {words[0]} does not answer {expected}")
        yield f"workbench {words[0]}"


def shared(place: Path) -> Iterator[str]:
    """Yield the names of the folders of manual pages and completions, which must have been installed.

    Raises:
        RuntimeError: A file is missing.
    """
    for file in sorted((ROOT / "share").rglob("*")):
        if file.is_file() and not (place / file.relative_to(ROOT / "share")).is_file():
            raise RuntimeError(f"{file.relative_to(ROOT)} was not installed")
    yield "manual pages and completions"


def installed_by_tools(wheel: Path, python: Path) -> Iterator[str]:
    """Install the wheel with uvx, uv and pipx, into temporary folders; yield what worked.

    Raises:
        subprocess.CalledProcessError: Something failed.
        RuntimeError: The installed command answers wrongly.
    """
    with tempfile.TemporaryDirectory() as home:
        place = Path(home)
        run(uv(), "tool", "run", "--python", python, "--from", wheel, "workbench", "--version")
        yield "uvx"
        folders = {"UV_TOOL_DIR": f"{home}/uv", "UV_TOOL_BIN_DIR": f"{home}/uv-bin"}
        run(uv(), "tool", "install", "--python", python, wheel, **folders)
        yield from (f"uv tool install: {done}" for done in answers(place / "uv-bin" / "workbench", place / "cache"))
        folders = {"PIPX_HOME": f"{home}/pipx", "PIPX_BIN_DIR": f"{home}/pipx-bin", "PIPX_MAN_DIR": f"{home}/man"}
        run(uv(), "tool", "run", "--from", PIPX, "pipx", "install", "--python", python, wheel, **folders)
        yield from (f"pipx install: {done}" for done in answers(place / "pipx-bin" / "workbench", place / "cache"))
        if not (place / "man" / "man1" / "workbench.1").is_file():
            raise RuntimeError("pipx shows no manual page")
        yield "pipx: man workbench"
