"""Make our processes import our own packages, even if the user's folder has modules with the same names.

`python -m`, and an entry such as `.` in PYTHONPATH, put the user's folder before the installed packages. So a file
`trainer.py` in this folder would be imported instead of our package. Our processes start with a safe path, and search
the user's folder last. This module is imported before the folders are in order, and so imports none of ours.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

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
