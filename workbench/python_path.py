"""Make our processes import our own packages, even if the user's folder has modules with the same names.

`python -m`, and an entry such as `.` in PYTHONPATH, put the user's folder before the installed packages. So a file
`trainer.py` in this folder would be imported instead of our package. Our processes start with a safe path, and search
the user's folder last.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions, version
from pathlib import Path

from analyzers.report import Finding, Severity

PACKAGE_ROOT = Path(__file__).resolve().parents[1]
OUR_PACKAGES = ("workbench", "trainer", "analyzers")


def command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs one of our modules without the working folder in its sys.path."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, **search_path()}


def search_path() -> dict[str, str]:
    """Return {"PYTHONPATH": value} that puts our packages before all others; empty if they already come first."""
    given = given_entries()
    # Before the standard library, site-packages would also bring forward outdated copies of its modules.
    if PACKAGE_ROOT.name == "site-packages" and not any(map(hidden_packages, given)):
        return {}
    return {"PYTHONPATH": os.pathsep.join([str(PACKAGE_ROOT), *given])}


def search_path_last() -> dict[str, str]:
    """Return {"PYTHONPATH": value} that puts our packages after all packages of the user; empty if not needed."""
    if PACKAGE_ROOT.name == "site-packages":
        return {}
    return {"PYTHONPATH": os.pathsep.join([*given_entries(), str(PACKAGE_ROOT)])}


def given_entries() -> list[str]:
    """Return the entries of the user's PYTHONPATH; empty entries, which mean the working folder, are left out."""
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def hidden_packages(folder: str | Path, names: Iterable[str] = OUR_PACKAGES) -> list[Path]:
    """Return the paths of modules and packages in `folder` that Python would import instead of ours.

    These are the modules and packages with one of `names`. The result is empty for the folder of our own packages.
    """
    resolved = _real_path(folder)
    if resolved == PACKAGE_ROOT:
        return []
    # A folder without __init__.py hides nothing: Python prefers a regular package anywhere in its search path.
    candidates = (path for name in names for path in (resolved / f"{name}.py", resolved / name / "__init__.py"))
    modules = [path for path in candidates if path.is_file()]
    return [path.parent if path.name == "__init__.py" else path for path in modules]


def _real_path(entry: str | Path) -> Path:
    """Return the absolute path of an entry of sys.path.

    A relative entry is returned unchanged if the working folder was deleted.
    """
    try:
        return Path(entry).resolve()
    except OSError:
        return Path(entry)


def working_folder() -> Path | None:
    """Return the working folder; None if it was deleted."""
    try:
        return Path.cwd()
    except OSError:
        return None


def put_own_packages_first() -> None:
    """Move the user's folders that come before our packages in sys.path to its end.

    These folders are the working folder, which `python -m workbench` puts first, and PYTHONPATH entries that hide one
    of our packages. They stay in sys.path, because a configuration may name a module of the user.
    """
    entries = [_real_path(entry) for entry in sys.path]
    position = entries.index(PACKAGE_ROOT) if PACKAGE_ROOT in entries else len(entries)
    ahead = sys.path[:position]
    here = working_folder()
    later = [entry for entry in ahead if _real_path(entry) == here or hidden_packages(entry)]
    own = [] if position < len(entries) else [str(PACKAGE_ROOT)]
    sys.path[:] = [entry for entry in sys.path if entry not in later] + own + later


_OUR_DISTRIBUTION = "torch-workbench"


def clashes() -> Iterator[Finding]:
    yield from _clashing_distributions()
    yield from _clashing_path_entries()
    yield from _clashing_modules_here()


def _clashing_distributions() -> Iterator[Finding]:
    """Yield a finding for each other distribution that contains a package with the name of one of ours.

    An example is the distribution `trainer` on PyPI.
    """
    installed = packages_distributions()
    for package in OUR_PACKAGES:
        for name in sorted({*installed.get(package, ())} - {_OUR_DISTRIBUTION}):
            yield Finding(
                id="doctor.same_package",
                severity=Severity.WARNING,
                title=f"{name} {version(name)} and {_OUR_DISTRIBUTION} both install a package named `{package}`",
                why="In one environment the files of one replace those of the other, or hide them.",
                next=f"Run `pip uninstall {name} && pip install --force-reinstall --no-deps"
                f" {_OUR_DISTRIBUTION}`,"
                " or install the two in separate virtual environments.",
                confidence=1.0,
            )


def _clashing_path_entries() -> Iterator[Finding]:
    """Yield a finding for each module in a PYTHONPATH folder that Python imports instead of one of our packages."""
    for entry in given_entries():
        for module in hidden_packages(entry):
            yield Finding(
                id="doctor.python_path",
                severity=Severity.WARNING,
                title=f"PYTHONPATH={entry} hides workbench's package `{module.stem}`",
                why=f"Python imports {module} in its place. The processes that workbench starts still find its own;"
                " `torchrun -m trainer` and your own scripts do not.",
                next=f"Take {entry} out of PYTHONPATH, or rename {module.name}.",
                confidence=1.0,
            )


def _clashing_modules_here() -> Iterator[Finding]:
    """Yield a finding for each module in the working folder with the name of one of our packages.

    A module named `workbench` gives a warning, because it breaks training scripts. The other names rarely matter.
    """
    here = working_folder()
    for module in hidden_packages(here) if here else ():
        breaks_scripts = module.stem == "workbench"
        yield Finding(
            id="doctor.module_here",
            severity=Severity.WARNING if breaks_scripts else Severity.INFO,
            title=f"{module.name} in the working folder has the name of workbench's package `{module.stem}`",
            why="A script in this folder with `from workbench import recorders` imports it in place of workbench's."
            if breaks_scripts
            else f"The commands of workbench do not import it. Only `python -m {module.stem}`, called in this folder,"
            " runs it in place of workbench's.",
            next=f"Rename {module.name}."
            if breaks_scripts
            else f"Nothing to do, unless you call `python -m {module.stem}` here: in that case rename {module.name}, or"
            " set PYTHONSAFEPATH=1.",
            confidence=1.0,
        )
