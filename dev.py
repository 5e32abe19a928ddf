#!/usr/bin/env python3
"""Set up a virtual environment beside this file, and run a command in it.

    python3 dev.py demo [INCIDENT]    run 2 ranks on the CPU until they break, and show why
    python3 dev.py test               run the tests, except those that start training jobs of several processes
    python3 dev.py test --slow        run only the tests that start such jobs
    python3 dev.py test --rare        run the rest: surroundings of jobs and meshes that resemble tested ones
    python3 dev.py test ARGS...       run pytest with these arguments
    python3 dev.py run COMMAND...     run any command of the environment, such as `run workbench --help`

Needs only Python 3.11 or newer; what it installs goes into .venv.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "set-up"


def wanted() -> str:
    """Return a digest that changes when what has to be installed changes."""
    native = sorted((ROOT / "analyzers" / "native" / "src").iterdir())  # built by the installation
    parts = (*(ROOT / name for name in ("pyproject.toml", "setup.py", "constraints.txt")), *native)
    return hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()


def set_up() -> None:
    if STAMP.exists() and STAMP.read_text() == wanted():
        return
    print("setting up .venv (once; some minutes)", file=sys.stderr, flush=True)
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    # Dependency groups need pip 25.1; the one that comes with Python may be older.
    install("--upgrade", "pip>=25.1")
    install("--constraint", "constraints.txt", "--editable", ".[train]", "--group", "dev")
    STAMP.write_text(wanted())


def install(*what: str) -> None:
    subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", *what], check=True, cwd=ROOT)


def command(words: list[str]) -> list[str]:
    if words[:1] == ["demo"]:
        return ["workbench", "demo", *words[1:]]
    if words[:1] == ["test"]:
        return ["pytest", *chosen_tests(words[1:])]
    if words[:1] == ["run"] and words[1:]:
        return words[1:]
    sys.exit(str(__doc__))


def chosen_tests(words: list[str]) -> list[str]:
    kinds = {(): "not slow and not rare", ("--slow",): "slow and not rare", ("--rare",): "rare"}
    if tuple(words) not in kinds:
        return words
    # In the order of tests/conftest.py, one file after the other, by three processes for two cores: many tests wait.
    return ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder", "-m", kinds[tuple(words)]]


def main() -> None:
    if sys.version_info < (3, 11):
        sys.exit("error: Python 3.11 or newer is needed\nhint: python3.11 dev.py ...")
    name, *arguments = command(sys.argv[1:])
    set_up()
    path = f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = os.environ | {"PATH": path, "VIRTUAL_ENV": str(VENV)}
    # Tests start about a thousand processes: each would compile our modules anew.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    os.execvpe(VENV / "bin" / name, [name, *arguments], environment)


if __name__ == "__main__":
    main()
