"""Return local paths for the paths and URLs that the user names; files at a URL are copied first."""

from collections.abc import Sequence
from pathlib import Path

from workbench.remote.urls import is_url, local_part


def local_paths(sources: Sequence[str], *, keep: bool = True) -> list[Path]:
    """Return a local path for each path or URL; without `keep`, downloaded files are deleted when this process ends.

    Raises:
        InputError: A URL cannot be read.
    """
    return [local_path(source, keep=keep) for source in sources]


def local_path(source: str, *, keep: bool = True) -> Path:
    """Return the local path of `source`: a path is returned unchanged, files at a URL are copied first.

    Files that have changed since the last copy are downloaded. Without `keep`, copies are deleted when this process
    ends.

    Raises:
        InputError: The URL cannot be read.
    """
    if not is_url(source):
        return Path(source)
    here = local_part(source)
    if here is not None:
        return Path(here)
    # Imported here: most commands are about local files, and need not wait for what copies others.
    from workbench.remote.copies import copied

    return copied(source, keep=keep)
