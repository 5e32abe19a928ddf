"""Print a report or write it to a file, in the requested format, and choose the exit status."""

import hashlib
import os
import shutil
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from analyzers import cache
from analyzers.cache import CacheFailure, discard, is_trusted, make_scratch
from analyzers.errors import Exit, InputError, WorkbenchError
from analyzers.files import json_bytes, read_whole, write_whole
from analyzers.report import Report, Severity
from analyzers.run import Run, Unreadable, files_below
from workbench.command_options.options import DocumentOptions, FailOn, Format, ReadOptions, ShowOptions
from workbench.console import note
from workbench.errors import UsageProblem
from workbench.present import render
from workbench.present.table import Table

SUFFIXES = {".html": Format.HTML, ".md": Format.MARKDOWN, ".json": Format.JSON, ".txt": Format.TEXT}


def deliver(report: Report[object], document: DocumentOptions, run: Run, fail_on: FailOn | None = None) -> Exit:
    is_whole = not isinstance(document, ShowOptions) or document.full or document.output is not None
    text = render(report, output_format(document), run, full=is_whole)
    if document.output:
        with refusing_to_overwrite(document.output, force=document.force, inputs=run):
            write_whole(document.output, text)
        note(f"wrote {document.output}")
    else:
        sys.stdout.write(text)
    return exit_status(report, fail_on)


def output_format(document: DocumentOptions) -> Format:
    """Return the format from `--format` or `--json`, or from the suffix of the output file; by default text.

    Raises:
        UsageProblem: The suffix is unknown.
    """
    if document.asked_format:
        return document.asked_format
    if document.output is None:
        return Format.TEXT
    if document.output.suffix not in SUFFIXES:
        raise UsageProblem(f"{document.output}: no known format", f"name it {', '.join(SUFFIXES)}, or give --format")
    return SUFFIXES[document.output.suffix]


@contextmanager
def refusing_to_overwrite(path: Path, *, force: bool, inputs: Run | None = None) -> Iterator[None]:
    """Return a context for writing the file `path`; it refuses to overwrite a file unless `force` is set.

    Raises:
        UsageProblem: The file exists, and `force` is not set or the file is one of `inputs`.
        InputError: The file cannot be written.
    """
    try:
        if path.exists() and not force and not _is_device(path):
            raise UsageProblem(f"{path} exists", "choose another name, or add --force")
        if inputs and _is_one_of(path, inputs):
            raise UsageProblem(f"{path} is a file of the run itself", "choose another name: it would be lost")
        yield
    except OSError as error:
        why = f"{path} was not written: {error.strerror or error}"
        raise InputError(why, "choose a folder that exists, can be written to, and has space") from error


def _is_device(path: Path) -> bool:
    return path.is_char_device() or path.is_fifo()


def _is_one_of(path: Path, run: Run) -> bool:
    """Return whether a path leads to a file of the run, possibly by another name such as a link."""
    try:
        target = path.stat()
    except FileNotFoundError:
        return False
    return any(os.path.samestat(target, known) for known in statuses(run))


def statuses(run: Run) -> Iterator[os.stat_result]:
    for artefact in run.artefacts:
        with suppress(OSError):
            yield artefact.path.stat()


def exit_status(report: Report[object], fail_on: FailOn | None) -> Exit:
    worst = report.worst()
    failed = fail_on and worst and worst.weight >= Severity(fail_on).weight
    return Exit.FINDINGS if failed else Exit.OK


# Store reports in the cache, so that the same question about unchanged files is answered without an analysis.
#
# The stored report has everything that text and JSON output need: the report, its data as JSON, and its tables. So an
# answer from the cache loads neither NumPy, nor pandas, nor an analyzer. Its name in the cache is a hash. It covers
# the question, and the path, size and times of every file on which the answer may depend, including this project's
# code.

REPORT_FILE = "report.json"
"""The name of the file with the report in a cache entry."""
_BYTES_AT_MOST = 16 << 20
"""The size in bytes of the largest report that is kept.

An analysis with a larger report takes long even if it reads its columns from the cache.
"""
_FOLDERS_ABOVE = 5
"""The number of folders above the given one that are searched for the run.json of the run.

The analyzers search up to four.
"""
_OWN_CODE = Path(__file__).resolve().parents[2]


class KeptReport(msgspec.Struct, frozen=True):
    """A report as it is stored: its data as JSON, its tables, and the command that shows more (empty: none)."""

    report: Report[msgspec.Raw]
    tables: list[Table]
    more: str


def key_of(room: str | None, paths: Sequence[Path], read: ReadOptions) -> str | None:
    """Return the name in the cache of the answer to a question; None if this answer must not be stored.

    `room` is the name of the analyzer (None: the files decide). Only answers about folders are stored, because for a
    single file the analyzers look at other files beside it. Answers with memory limits or workers are not stored
    either.
    """
    if read.no_cache or read.max_memory or read.cluster:
        return None
    # The number of processes that read changes no answer.
    question = (room, [str(path) for path in paths], replace(read, jobs=None), sys.version, os.environ.get("TZ"))
    digest = hashlib.sha256(repr(question).encode(errors="surrogateescape"))
    unreadable: list[Unreadable] = []
    try:
        if not all(path.is_dir() for path in paths):
            return None
        for state in (*states(_read_files(paths, unreadable)), *states(own_code())):
            digest.update(state)
    except (OSError, WorkbenchError):
        # The analysis says what is wrong.
        return None
    return None if unreadable else digest.hexdigest()[:32]


def states(files: Iterable[Path]) -> Iterator[bytes]:
    """Yield the path, size and modification times of each file; for a missing file, only its path."""
    for path in files:
        try:
            stat = path.stat()
        except FileNotFoundError:
            yield b"%b\0" % os.fsencode(path)
        else:
            yield b"%b\0%d %d %d\0" % (os.fsencode(path), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


def own_code() -> Iterator[Path]:
    """Yield the files of this project's code, and the folder of the installed libraries, in a fixed order."""
    for name in ("analyzers", "workbench"):
        for folder, inner_folders, files in os.walk(_OWN_CODE / name):
            inner_folders[:] = sorted(inner for inner in inner_folders if inner != "__pycache__")
            yield from (Path(folder, file) for file in sorted(files) if file.endswith((".py", ".so")))
    # A library that is installed or upgraded changes the time of this folder.
    yield Path(msgspec.__file__).parents[1]


def _read_files(paths: Sequence[Path], unreadable: list[Unreadable]) -> Iterator[Path]:
    """Yield every file on which an answer about the folders `paths` depends, and the folders of these files.

    Problems are added to `unreadable`.
    """
    for root in paths:
        folder = None
        for file in files_below(root, unreadable):
            # A change of a folder's permissions may hide its files.
            if file.parent != folder:
                yield (folder := file.parent)
            yield file
        above = root.resolve().parents[:_FOLDERS_ABOVE]
        yield from (folder / "run.json" for folder in above)
        # The heartbeats of a run, where only its folder of dumps was given.
        yield from sorted((above[0] / "steps").glob("*") if above else ())


def find(key: str) -> KeptReport | None:
    """Return the stored report with the name `key`; None if there is none, or if it is damaged or not trusted."""
    folder = cache.cache_folder()
    if folder is None or not is_trusted(entry := folder / key):
        return None
    try:
        check, _, body = read_whole(entry / REPORT_FILE, 2 * _BYTES_AT_MOST).partition(b"\n")
        kept = msgspec.json.decode(body, type=KeptReport) if check == b"%08x" % zlib.crc32(body) else None
    except (OSError, msgspec.MsgspecError):
        kept = None
    if kept is None:
        discard(entry)
        return None
    with suppress(OSError):
        os.utime(entry)
    return kept


def keep(key: str, kept: KeptReport) -> None:
    """Store a report in the cache; a report that is too large, or cannot be written, is not stored."""
    folder, body = cache.cache_folder(), json_bytes(kept)
    if folder is None or folder in cache.UNUSABLE or len(body) > _BYTES_AT_MOST:
        return
    try:
        scratch = make_scratch(folder)
        try:
            (scratch / REPORT_FILE).write_bytes(b"%08x\n%b" % (zlib.crc32(body), body))
            scratch.rename(folder / key)
            cache.prune_if_grown(folder / key)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except (OSError, CacheFailure):
        # Without it, the next answer only takes longer.
        return


def may_change(report: Report[object], run: Run) -> bool:
    """Return whether the answer for the same files may be different later.

    This is so while the launcher of a job runs, because its end is not visible in the files alone. It is also so if a
    file could not be read, or not within the limits, because the limits depend on the machine.
    """
    is_incomplete = any(finding.id.endswith(".unreadable") for finding in report.findings)
    return is_incomplete or bool(run.unreadable) or run.manifest().get("status") == "running"
