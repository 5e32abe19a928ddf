"""Copy the files at a URL into the cache, and print on stderr what was copied."""

from pathlib import Path

from analyzers.cache import folders
from analyzers.errors import InputError
from analyzers.words import quantity, size
from workbench.console import note
from workbench.remote.download import Download, too_large
from workbench.remote.file_system import asking, open_file_system
from workbench.remote.listing import Listing, list_files
from workbench.remote.mirror import Mirror, opened_mirror
from workbench.remote.urls import without_credentials


def copied(url: str, *, keep: bool) -> Path:
    """Download the files at a URL that are new or changed since the last copy; return the path of the copies.

    Raises:
        InputError: The URL cannot be read, or has more bytes than the cache may hold.
    """
    file_system, root = open_file_system(url)
    listing = asking(url, lambda: list_files(file_system, root))
    _report_refused(url, listing)
    if not listing.files:
        raise InputError(f"{without_credentials(url)}: no files there", "give the folder of a run, or a file of it")
    with opened_mirror(url, keep=keep) as mirror:
        limit = folders.limit_bytes(mirror.folder.parents[1])
        if (wanted := sum(file.size or 0 for file in listing.files)) > limit:
            raise too_large(url, wanted, limit)
        mirror.remove_others(listing.files)
        missing = [file for file in listing.files if not mirror.holds(file)]
        download = Download(url, file_system, mirror, missing, limit)
        download.run()
        _report_copies(url, mirror, download, len(listing.files))
    return mirror.path_of(listing.files[0]) if listing.is_file else mirror.files


def _report_refused(url: str, listing: Listing) -> None:
    """Print on stderr how many listed files are left out: no file here can have their names, or they are not there."""
    if listing.refused:
        count = quantity(len(listing.refused), "name")
        note(f"note: {without_credentials(url)}: left out {count} that cannot be read from there: {listing.refused[0]}")


def _report_copies(url: str, mirror: Mirror, download: Download, count: int) -> None:
    """Print on stderr what was downloaded, and the folder of the copies; paths in the report are in this folder."""
    done = f"downloaded {quantity(download.done_files, 'file')} of {count}, {size(download.done_bytes)}"
    note(f"{without_credentials(url)}: {done if download.done_files else 'unchanged'}; read from {mirror.files}")
