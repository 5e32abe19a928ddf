"""Check what lies in a wheel and in a source archive: all that users need, and nothing of the tests or the machine."""

import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email.parser import BytesParser
from pathlib import Path, PurePosixPath

PACKAGES = ("analyzers", "trainer", "workbench")
SUFFIXES = {".py", ".typed", ".md", ".css", ".tcss", ".js"}
"""The suffixes of files in our packages; compiled code, caches, recordings and notebooks have others."""
NATIVE = "analyzers/native/_readers.abi3.so"
"""The readers in C++, the only compiled code of a wheel; it serves all versions of Python."""
SOURCES = "analyzers/native/src/"
NEEDED = (
    *(f"{package}/py.typed" for package in PACKAGES),
    "workbench/SKILL.md",
    "workbench/tui/workbench.tcss",
    "workbench/web/assets/plotly.js",
    "workbench/web/assets/workbench.css",
)
FORBIDDEN = {"tests", "fixtures", "conftest.py", "__pycache__", "benchmarks", ".venv", ".git"}
BESIDE = {
    "PKG-INFO",
    "MANIFEST.in",
    "setup.py",
    "setup.cfg",
    "torch_workbench.egg-info",
    "pyproject.toml",
    "LICENSE",
    "README.md",
    "CHANGELOG.md",
    "constraints.txt",
    "share",
}
"""What a source archive holds besides our packages."""
LARGEST_BYTES = 8 << 20


def wheel_problems(wheel: Path, root: Path, tracked: set[str]) -> Iterator[str]:
    """Yield a sentence for each fault of a wheel with the native readers; `tracked` are the files under version control
    in `root`.
    """
    project = project_of(root)
    stem = f"{project['name'].replace('-', '_')}-{project['version']}"
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        yield from metadata_problems(archive, names, f"{stem}.dist-info", project)
        shared = shared_files(names, f"{stem}.data/data/")
    tops = {name.partition("/")[0] for name in names} - {*PACKAGES, f"{stem}.dist-info", f"{stem}.data"}
    yield from (f"the wheel has a top-level {name}" for name in sorted(tops))
    inside = {name for name in names if name.partition("/")[0] in PACKAGES}
    if NATIVE not in inside:
        yield f"the wheel has no {NATIVE}: was there a C++ compiler?"
    of_packages = {name for name in tracked if name.partition("/")[0] in PACKAGES and not name.startswith(SOURCES)}
    yield from package_problems(inside - {NATIVE}, of_packages)
    yield from difference("share", shared, {name for name in tracked if name.startswith("share/")})
    if wheel.stat().st_size > LARGEST_BYTES:
        yield f"the wheel has {wheel.stat().st_size} bytes, more than {LARGEST_BYTES}"


def project_of(root: Path) -> dict[str, str]:
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]


def metadata_problems(archive: zipfile.ZipFile, names: set[str], place: str, project: dict[str, str]) -> Iterator[str]:
    for name in ("METADATA", "entry_points.txt", "licenses/LICENSE"):
        if f"{place}/{name}" not in names:
            yield f"the wheel has no {place}/{name}"
            return
    metadata = BytesParser().parsebytes(archive.read(f"{place}/METADATA"))
    for key, field in {
        "Version": "version",
        "License-Expression": "license",
        "Requires-Python": "requires-python",
    }.items():
        if metadata[key] != project[field]:
            yield f"the wheel says {key}: {metadata[key]}, pyproject.toml {project[field]}"


def shared_files(names: set[str], prefix: str) -> set[str]:
    """Return the files that an installer puts beside `bin`, such as manual pages, by their path there."""
    return {name.removeprefix(prefix) for name in names if name.startswith(prefix)}


def package_problems(inside: set[str], tracked: set[str]) -> Iterator[str]:
    """Yield the faults of the packages in a wheel, whose files are `inside`."""
    yield from difference("package", inside, tracked)
    yield from (f"the wheel has no {name}" for name in NEEDED if name not in inside)
    for name in sorted(inside):
        path = PurePosixPath(name)
        if path.suffix not in SUFFIXES or FORBIDDEN & set(path.parts):
            yield f"the wheel has {name}, which users do not need"


def difference(what: str, present: set[str], tracked: set[str]) -> Iterator[str]:
    yield from (f"the {what} file {name} is not under version control" for name in sorted(present - tracked))
    yield from (f"the {what} file {name} is missing in the wheel" for name in sorted(tracked - present))


def sdist_problems(archive: Path, tracked: set[str]) -> Iterator[str]:
    """Yield a sentence for each fault of a source archive."""
    with tarfile.open(archive) as opened:
        members = [member for member in opened.getmembers() if not member.isdir()]
    names = {member.name.partition("/")[2] for member in members}
    yield from (f"the source archive has {member.name}, no plain file" for member in members if not member.isfile())
    tops = {name.partition("/")[0] for name in names}
    yield from (f"the source archive has {name}" for name in sorted(tops - BESIDE - set(PACKAGES)))
    yield from (f"the source archive has no {name}" for name in sorted(BESIDE - tops))
    made = {"PKG-INFO", "setup.cfg", *(name for name in names if name.startswith("torch_workbench.egg-info/"))}
    strange = names - tracked - made
    missing = {name for name in tracked if name.partition("/")[0] in PACKAGES} - names
    yield from (f"the source archive has no {name}" for name in sorted(missing))
    yield from (f"the source archive's {name} is not under version control" for name in sorted(strange))


def same_contents(one: Path, other: Path) -> Iterator[str]:
    """Yield a sentence for each file in which two wheels differ."""
    with zipfile.ZipFile(one) as first, zipfile.ZipFile(other) as second:
        sums = [{info.filename: info.CRC for info in archive.infolist()} for archive in (first, second)]
    for name in sorted(sums[0].keys() | sums[1].keys()):
        if sums[0].get(name) != sums[1].get(name):
            yield f"the wheel of the source archive has another {name}"
