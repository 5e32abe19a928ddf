"""Choose the folder of a run: one that can be written, and has no links or pipes in the places of its files."""

import stat
import tempfile
from pathlib import Path

from analyzers.errors import InputError

_WRITTEN = (
    *("run.json", ".settling", "logs", "logs/stdout.log", "logs/stderr.log", "previous", "dumps", "steps", "health"),
    *("nodes", "memory_snapshot", "profile_traces", "values", "not_finite", "checkpoint/step-0", "proof.toml"),
)
"""What the launcher opens, writes or moves in the folder of a run; the recorders refuse links themselves."""


def usable_folder(folder: Path, what: str, prefix: str) -> tuple[Path | None, str | None]:
    """Return `folder` after creating it; where it cannot be written, a new temporary one and a note that says so.

    `what` is what is written there, in the note, and `prefix` begins the name of the temporary folder. The folder is
    None if there is no place for one.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Also a full disk may refuse a new folder.
        Path(tempfile.mkdtemp(prefix=".try_", dir=folder)).rmdir()
    except OSError as error:
        other = temporary_folder(prefix)
        place = "nowhere" if other is None else f"in {other}"
        return other, f"{what} {place}, because {folder} cannot be written: {error.strerror}"
    return folder, None


def temporary_folder(prefix: str) -> Path | None:
    try:
        return Path(tempfile.mkdtemp(prefix=prefix))
    except OSError:
        return None


def refuse_links(folder: Path, *, with_itself: bool = False) -> None:
    """Refuse a run folder, if what would be written to it goes elsewhere, or waits for a reader that never comes.

    With `with_itself`, the folder itself must not be a link: its name was not given by the person.

    Raises:
        InputError: A link, a pipe or a device has the name of a file or folder of the run.
    """
    for path in ((folder,) if with_itself else ()) + tuple(folder / name for name in _WRITTEN):
        try:
            mode = path.lstat().st_mode
        except OSError:
            continue
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            kind = "a link" if stat.S_ISLNK(mode) else "a pipe or device"
            raise InputError(
                f"{path} is {kind}: what a job writes there would go elsewhere",
                "remove it, or write the run to another folder (--job.dump_folder)",
            )
