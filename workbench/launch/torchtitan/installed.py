"""Find the installed torchtitan: its version, the form of its options, and packages that are incompatible with it."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

_PACKAGE = "torchtitan"
UNKNOWN = "of unknown version"
_UNDECLARED = ("torch", "triton")
"""The modules that torchtitan imports at its start without naming them in its requirements."""
_TORCH_SINCE = {(0, 3): (2, 14)}
"""{version of torchtitan: the oldest version of torch with which it trains}, for versions that need a newer torch."""
BACKEND_OPTION = "parallelism.spmd_backend"
BACKEND_OF_OLDER_TORCH = "partial_dtensor"
"""The value of the option `parallelism.spmd_backend` with which torchtitan 0.3 trains with torch 2.13 as well."""


class Form(StrEnum):
    """How a version of torchtitan is configured."""

    TOML = "toml"
    """Up to torchtitan 0.2: a TOML file, and `--job.dump_folder`."""
    REGISTRY = "registry"
    """Since 0.3: a Python function, named by `--module llama3 --config llama3_debugmodel`, and `--dump_folder`."""


@dataclass(frozen=True)
class Torchtitan:
    """An installed torchtitan: its version (`UNKNOWN` for a folder without metadata) and the `Form` of its options."""

    version: str
    form: Form

    @property
    def name(self) -> str:
        """The name to print, such as `torchtitan 0.2.2`."""
        return f"torchtitan {self.version}"


@dataclass(frozen=True)
class Conflict:
    """A package whose version is incompatible with the installed torchtitan, and the command that installs another.

    `prevents_training` says that training cannot even begin with this package.
    """

    title: str
    why: str
    command: str
    prevents_training: bool = False


def installed_torchtitan(path: list[str]) -> Torchtitan | None:
    """Return the torchtitan that Python finds in the search path `path`; None if there is none.

    The form of its options is found in its files, because a source checkout may have an old version number.
    """
    spec = PathFinder.find_spec(_PACKAGE, path)
    if spec is None or not spec.origin:
        return None
    has_registry = (Path(spec.origin).parent / "models" / "llama3" / "config_registry.py").is_file()
    return Torchtitan(package_version(_PACKAGE) or UNKNOWN, Form.REGISTRY if has_registry else Form.TOML)


def package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def conflicts(found: Torchtitan, options: tuple[str, ...] = ()) -> list[Conflict]:
    """Return a `Conflict` for each package that is incompatible with the installed torchtitan.

    `options` are torchtitan's command-line options; one of them lets torchtitan 0.3 train with an older torch.
    """
    declared = requires(_PACKAGE) or [] if found.version != UNKNOWN else []
    missing = list(missing_packages(declared))
    wrong = list(wrong_packages(found, declared))
    return [*old_torch(found, options), *([missing_conflict(found, missing)] if missing else []), *wrong]


def missing_conflict(found: Torchtitan, missing: list[str]) -> Conflict:
    """Return the `Conflict` for packages that are not installed; `missing` has requirements like `torchdata>=0.8.0`."""
    names = ", ".join(Requirement(each).name for each in missing)
    return Conflict(f"{found.name} lacks {names}", "Its import fails, or a part of it does not work.", pip(missing))


def missing_packages(declared: list[str]) -> Iterator[str]:
    """Yield the requirement, such as `datasets>=3.6`, of each missing package that torchtitan needs.

    `declared` has all requirements in torchtitan's metadata.
    """
    for needed in required(declared):
        if package_version(needed.name) is None:
            yield f"{needed.name}{needed.specifier}"
    yield from (name for name in _UNDECLARED if find_spec(name) is None)


def wrong_packages(found: Torchtitan, declared: list[str]) -> Iterator[Conflict]:
    """Yield a `Conflict` for each installed package with a version that torchtitan's metadata exclude.

    `declared` has the requirements in these metadata.
    """
    for needed in required(declared):
        have = package_version(needed.name)
        # By default no pre-release fits, and so no nightly version.
        if have is not None and not needed.specifier.contains(have, prereleases=True):
            wanted = f"{needed.name}{needed.specifier}"
            yield Conflict(
                f"{found.name} is incompatible with {needed.name} {have}", f"It asks for {wanted}.", pip([wanted])
            )


def old_torch(found: Torchtitan, options: tuple[str, ...]) -> Iterator[Conflict]:
    """Yield a `Conflict` if the installed torch is too old for this torchtitan.

    torchtitan's own metadata do not contain this requirement.
    """
    have = package_version("torch")
    needed = max((torch for since, torch in _TORCH_SINCE.items() if release(found.version)[:2] >= since), default=None)
    if have is None or needed is None or release(have) >= needed or _uses_older_backend(options):
        return
    least = ".".join(map(str, needed))
    title = f"{found.name} needs torch {least} or newer; this is torch {have}"
    why = f"With an older one its model dies at the start; only --{BACKEND_OPTION} {BACKEND_OF_OLDER_TORCH} trains."
    yield Conflict(title, why, pip([f"torch>={least}"]), prevents_training=True)


def _uses_older_backend(options: tuple[str, ...]) -> bool:
    """Return whether torchtitan's options choose the backend that works with older versions of torch."""
    words = " ".join(options).replace("=", " ").replace("-", "_")
    return f"__{BACKEND_OPTION} {BACKEND_OF_OLDER_TORCH}" in words


def pip(requirements: list[str]) -> str:
    """Return the command that installs the given requirements.

    >>> pip(["torch>=2.14", "triton"])
    "pip install 'torch>=2.14' triton"
    """
    return shlex.join(["pip", "install", *requirements])


def required(declared: list[str]) -> Iterator[Requirement]:
    """Yield the requirements that apply to this machine, out of `declared`, the requirements in a package's metadata.

    Requirements of optional extras are left out.

    >>> [str(each) for each in required(["datasets<4.8.0,>=3.6.0", "pytest; extra == 'dev'"])]
    ['datasets<4.8.0,>=3.6.0']
    """
    found = (Requirement(text) for text in declared)
    yield from (each for each in found if each.marker is None or each.marker.evaluate({"extra": ""}))


def release(text: str) -> tuple[int, ...]:
    """Return the numbers of a version, such as (2, 13, 0) for `2.13.0+cpu`; empty if the text is not a version."""
    try:
        return Version(text).release
    except InvalidVersion:
        return ()
