"""Findings about modules and packages of the user that Python would import instead of our own."""

from collections.abc import Iterator
from importlib.metadata import packages_distributions, version

from analyzers.report import Finding, Severity
from workbench.python_path import OUR_PACKAGES, given_entries, hidden_packages, working_folder

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
