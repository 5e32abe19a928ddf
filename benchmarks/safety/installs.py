"""Install the wheel on each Python of this machine, as the documentation says, and try every command that needs no GPU.

    python benchmarks/safety/installs.py [--python 3.12 ...] [--newest] [--torch 2.13.0 [--without-cuda]] [--sbom]

Pythons are searched for on the PATH and in pyenv. Each gets a temporary environment with the wheel and
`constraints.txt` (`--newest`: without it, so with the newest versions that the requirements allow). With `--torch
VERSION` the extra `train` is installed too, and a job of two ranks trains; `--without-cuda` replaces the gigabytes of
CUDA libraries (see `cuda_stubs`; it needs gcc, binutils and x86-64). `--sbom` writes the licences (pip-licenses) and
the bill of materials (cyclonedx-bom) of the installed packages to `docs/reference`; both tools run in a separate
environment. Prints a line for each Python, and the failures.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.safety.cuda_stubs import install_without_cuda  # noqa: E402

FIXTURES = ROOT / "tests" / "fixtures"
VERSIONS = ("3.11", "3.12", "3.13")
TOOLS = ("pip-licenses==5.5.5", "cyclonedx-bom==7.5.0")
NEEDED = ("pip>=25.1",)
PATIENCE_S = 300


def interpreter(version: str) -> Path | None:
    """Return a Python of this version, the newest if pyenv has several; None if there is none."""
    for path in sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python{version}"), reverse=True):
        return path
    found = shutil.which(f"python{version}")
    return Path(found) if found else None


def run(*words: str | Path, **environment: str) -> str:
    """Run a command outside the working tree, and return its output.

    Raises:
        subprocess.CalledProcessError: The command failed.
    """
    with tempfile.TemporaryDirectory() as elsewhere:
        settings = {**os.environ, "PYTHONWARNINGS": "error::SyntaxWarning", **environment}
        settings.pop("PYTHONPATH", None)
        ended = subprocess.run(
            [*map(str, words)], cwd=elsewhere, env=settings, capture_output=True, text=True, check=True
        )
    return ended.stdout


@contextlib.contextmanager
def environment(python: Path, *packages: str | Path) -> Iterator[Path]:
    """Yield the `bin` folder of a new temporary environment with these packages."""
    with tempfile.TemporaryDirectory(prefix="install-") as home:
        run(python, "-m", "venv", home)
        place = Path(home) / "bin"
        run(place / "python", "-m", "pip", "install", "--quiet", "--upgrade", *NEEDED)
        if packages:
            run(place / "python", "-m", "pip", "install", "--quiet", *packages)
        yield place


def build(python: Path, folder: Path) -> Path:
    """Build a wheel of the working tree, and return its path."""
    run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
    [wheel] = folder.glob("*.whl")
    return wheel


def smoke(place: Path, *, trains: bool) -> Iterator[str]:
    """Try the installed commands; yield the name of each test that succeeded.

    Raises:
        subprocess.CalledProcessError: A command failed.
    """
    command = place / "workbench"
    yield f"version {run(command, '--version').split()[-1]}"
    for name in ("oom_2ranks", "stuck_2ranks", "straggler_2ranks", "torchtitan_2ranks", "traces/healthy_4ranks"):
        report = json.loads(run(command, "inspect", FIXTURES / name, "--json"))
        yield f"inspect {name}: {report['verdict']['class']}"
    yield f"hang: {json.loads(run(command, 'hang', FIXTURES / 'skip_4ranks', '--json'))['verdict']['class']}"
    run(place / "python", "-c", "import analyzers.memory")
    for form in ("html", "md", "json"):
        run(command, "report", FIXTURES / "oom_2ranks", "-o", f"report.{form}")
        yield f"report.{form}"
    run(command, "compare", FIXTURES / "healthy_2ranks", FIXTURES / "straggler_2ranks", "--json")
    run(command, "config", "explain", ROOT / "configs" / "debug_model.toml", "--json")
    run(command, "doctor", "--json")
    yield "compare, config, doctor"
    run(place / "python", "-c", TERMINAL, FIXTURES / "oom_2ranks")
    yield "terminal app"
    serve(command)
    yield "dashboard"
    if trains:
        run(command, "demo", "oom", "--json")
        yield "demo oom"


TERMINAL = """
import asyncio, pathlib, sys
from analyzers.run import discover
from analyzers.store import Options
from analyzers.rooms import JOINED
from workbench.tui.app import WorkbenchApp
from workbench.tui.subject import subject_of

async def main():
    app = WorkbenchApp(subject_of(discover(pathlib.Path(sys.argv[1])), JOINED, Options()))
    async with app.run_test(size=(120, 40)) as pilot:
        for key in "12345678":
            await pilot.press(key)
            while not all(worker.is_finished for worker in app.workers):
                await pilot.pause(0.05)

asyncio.run(main())
"""


def serve(command: Path) -> None:
    """Start the dashboard of a run and request its page.

    Raises:
        RuntimeError: The server ended.
    """
    with tempfile.TemporaryFile("w+") as log:
        words = [command, "serve", FIXTURES / "oom_2ranks", "--port", "0"]
        server = subprocess.Popen(words, stderr=log, cwd="/")
        try:
            while not (told := re.search(r"http://\S+:\d+/\?token=(\S+)", os.pread(log.fileno(), 9999, 0).decode())):
                if server.poll() is not None:
                    raise RuntimeError(os.pread(log.fileno(), 9999, 0).decode())
                time.sleep(0.1)
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            with opener.open(told[0].replace("/?", "/report.json?"), timeout=PATIENCE_S) as answer:
                json.load(answer)
        finally:
            server.terminate()
            server.wait()


def try_python(python: Path, wheel: Path, settings: argparse.Namespace) -> bool:
    """Install and try everything on one Python; print the results, and return whether all succeeded."""
    label = run(python, "--version").strip()
    pins = [] if settings.newest else ["--constraint", ROOT / "constraints.txt"]
    extra = [f"torch=={settings.torch}"] if settings.torch and not settings.without_cuda else []
    done = []
    try:
        with environment(python, *pins, f"{wheel}[train]" if extra else wheel, *extra) as place:
            if settings.without_cuda:
                install_without_cuda(place, settings.torch)
                run(place / "python", "-m", "pip", "install", "--quiet", *pins, "tensorboard")
            else:
                run(place / "python", "-m", "pip", "check")
            done += smoke(place, trains=bool(settings.torch))
    except (subprocess.CalledProcessError, RuntimeError) as error:
        print(f"{label}: FAILED after {done}: {getattr(error, 'stderr', '') or error}", flush=True)
        return False
    print(f"{label}: all worked: {'; '.join(done)}", flush=True)
    return True


def write_materials(python: Path, wheel: Path) -> None:
    """Write the licences and the bill of materials of the packages that `pip install` installs without extras."""
    target = ROOT / "docs" / "reference"
    pins = ("--constraint", ROOT / "constraints.txt")
    with environment(python, *pins, wheel) as installed, environment(python, *TOOLS) as tools:
        listed = run(
            *(tools / "pip-licenses", "--python", installed / "python", "--format", "markdown", "--with-urls"),
            *("--order", "name", "--ignore-packages", "pip", "setuptools", "torch-workbench"),
        )
        materials = run(
            *(tools / "cyclonedx-py", "environment", "--output-reproducible", "--pyproject", ROOT / "pyproject.toml"),
            installed / "python",
        )
    (target / "licences.md").write_text(f"{LICENCES_HEAD}\n{listed}", encoding="utf-8")
    (target / "sbom.cdx.json").write_text(materials.rstrip() + "\n", encoding="utf-8")


LICENCES_HEAD = """# Licences

What `pip install torch-workbench` brings, without extras, in the versions of `constraints.txt`. The bill of materials
is [sbom.cdx.json](sbom.cdx.json) (CycloneDX). Both are written by `python benchmarks/safety/installs.py --sbom`.

The dashboard's `assets/plotly.js` is made from [plotly.js](https://github.com/plotly/plotly.js) (MIT), which contains
D3 (BSD-3-Clause, ISC), by `python docs/plotly_bundle.py`.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", default=VERSIONS, metavar="VERSION")
    parser.add_argument("--newest", action="store_true")
    parser.add_argument("--torch")
    parser.add_argument("--without-cuda", action="store_true")
    parser.add_argument("--sbom", action="store_true")
    settings = parser.parse_args()
    found = {version: interpreter(version) for version in settings.python}
    for version in (version for version, python in found.items() if python is None):
        print(f"Python {version}: not here")
    pythons: Sequence[Path] = [python for python in found.values() if python]
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(pythons[0], Path(folder))
        if settings.sbom:
            write_materials(pythons[0], wheel)
            return
        worked = [try_python(python, wheel, settings) for python in pythons]
    sys.exit(not (worked and all(worked)))


if __name__ == "__main__":
    main()
