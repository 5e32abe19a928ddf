"""Read and write `parity.json`: the names and folders of the runs that `workbench parity` has compared."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from analyzers.errors import InputError
from analyzers.files import read_whole
from analyzers.parity.model import NamedRun
from analyzers.parity.report import TOLERANCE
from analyzers.writing import write_whole

FILE = "parity.json"
_RUNS_AT_MOST = 1000


class RunFolder(msgspec.Struct, frozen=True):
    """The name of a run, and the name of its folder beside `parity.json`."""

    name: str
    folder: str


class Meshes(msgspec.Struct, frozen=True):
    """The content of `parity.json`: the runs, and the relative difference that is allowed between them."""

    runs: list[RunFolder]
    tolerance: float = TOLERANCE
    schema: str = "workbench.meshes/1"


def write_runs(folder: Path, runs: Sequence[NamedRun], tolerance: float) -> None:
    """Write the names and folders of runs to `parity.json` in `folder`, which holds the folders of the runs.

    Raises:
        OSError: The file cannot be written.
    """
    meshes = Meshes([RunFolder(run.name, Path(run.folder).name) for run in runs], tolerance)
    write_whole(folder / FILE, msgspec.json.encode(meshes).decode() + "\n")


def read_runs(folder: Path) -> tuple[list[NamedRun], float]:
    """Return (runs, relative difference allowed between them) from the `parity.json` in a folder.

    Raises:
        InputError: There is no such file, or it is damaged, or it names folders outside of `folder`.
    """
    try:
        meshes = msgspec.json.decode(read_whole(folder / FILE), type=Meshes)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{folder / FILE}: {error}", "give the --folder of workbench parity, or --run again"
        ) from error
    # A file from elsewhere may not lead to other folders.
    is_below = all(run.folder == Path(run.folder).name not in ("", "..") for run in meshes.runs)
    if not (is_below and meshes.tolerance >= 0 and len(meshes.runs) <= _RUNS_AT_MOST):
        raise InputError(f"{folder / FILE}: no list of runs of this folder", "run workbench parity again")
    return [NamedRun(run.name, folder / run.folder) for run in meshes.runs], meshes.tolerance
