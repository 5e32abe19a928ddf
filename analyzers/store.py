"""Artefact -> columns: read in a child process under limits, kept as `.npy` files, memory-mapped by everyone else.

A reader is a module with `VERSION: int` and `read(paths: list[Path]) -> tuple[dict[str, ndarray], dict]`: the columns
and a JSON-able `meta`. It is named by its dotted path because this floor must not import the rooms above it.
Artefacts can be hostile and huge. The child limits itself before it opens one, executes nothing, and what it wrote
is found again by the files' identity (path, size, time of change) and the reader's version.
"""

import importlib
import os
import resource
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from analyzers.errors import HostileInput, InputError, LimitExceeded, WorkbenchError

if TYPE_CHECKING:
    import subprocess

PACKAGE_ROOT = Path(__file__).resolve().parent.parent
CACHE_BYTES = 4 << 30
"""What the cache may hold; the entries used longest ago go first."""
SCRATCH = "reading-"
FAILED = 3
"""Exit status of a child that says on stdout what is wrong with the input."""


@dataclass(frozen=True)
class Options:
    """How to read: what every analyzer takes beside its files.

    `jobs` children run at once; `max_memory` bounds all of them together, in bytes. None picks a bound for each from
    its file's size. `peak_flops` are the operations a second of a device that no table knows.
    """

    rank: int | None = None
    step: int | None = None
    jobs: int = field(default_factory=lambda: os.cpu_count() or 1)
    cache: bool = True
    max_memory: int | None = None
    peak_flops: float | None = None


class Columns(Mapping[str, "np.ndarray[Any, Any]"]):
    """The columns of an artefact, memory-mapped on first use, and its `meta`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta: dict[str, Any] = msgspec.json.decode((folder / "meta.json").read_bytes())
        self._names: list[str] = self.meta.pop("__columns__")
        self._mapped: dict[str, np.ndarray[Any, Any]] = {}

    def __getitem__(self, name: str) -> "np.ndarray[Any, Any]":
        if name not in self._names:
            raise KeyError(name)
        if name not in self._mapped:
            path = self.folder / f"{name}.npy"
            self._mapped[name] = np.load(path, mmap_mode="r", allow_pickle=False)
        return self._mapped[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def load(paths: Sequence[Path], reader: str, options: Options | None = None) -> Columns:
    """The columns of one artefact, which may lie in several files.

    Raises:
        InputError: A file is missing, damaged, hostile, or needs more than the limits allow.
    """
    import tempfile

    options = options or Options()
    paths = [path.resolve() for path in paths]
    entry = cache_folder() / cache_key(paths, reader)
    if options.cache and (entry / "meta.json").exists():
        os.utime(entry)
        return Columns(entry)
    entry.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=entry.parent))
    try:
        read_in_child(paths, reader, scratch, options.max_memory)
        if not options.cache:
            return detached(scratch)
        keep(scratch, entry)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    prune(entry.parent, CACHE_BYTES)
    return Columns(entry)


def load_many(
    artefacts: Sequence[Sequence[Path]], reader: str, options: Options | None = None
) -> list[Columns | WorkbenchError]:
    """Each artefact's columns, or why it could not be read: one bad file does not stop the rest.

    Children that run at once share `max_memory` evenly; what its share is too small for is read again, alone.
    """
    from concurrent.futures import ThreadPoolExecutor

    options = options or Options()
    workers = max(1, min(options.jobs, len(artefacts)))
    shared = replace(options, max_memory=options.max_memory and options.max_memory // workers)
    with ThreadPoolExecutor(max_workers=workers) as pool:
        loaded = list(pool.map(lambda paths: attempt(paths, reader, shared), artefacts))
    if shared.max_memory == options.max_memory:
        return loaded
    return [
        attempt(paths, reader, options) if isinstance(one, LimitExceeded) else one
        for paths, one in zip(artefacts, loaded, strict=True)
    ]


def attempt(paths: Sequence[Path], reader: str, options: Options) -> Columns | WorkbenchError:
    try:
        return load(paths, reader, options)
    except WorkbenchError as error:
        return error


def load_set(
    paths: Sequence[Path], reader: str, options: Options | None = None
) -> list[tuple[list[int], Columns | WorkbenchError]]:
    """Many small files through one child: [(their numbers in `paths`, columns)].

    Readers of sets report damaged files in `meta`. Should one take the child down, its half is read in halves again, so
    that one of thousands costs a few children more.
    """
    return load_part(list(range(len(paths))), paths, reader, options) if paths else []


def load_part(
    numbers: list[int], paths: Sequence[Path], reader: str, options: Options | None
) -> list[tuple[list[int], Columns | WorkbenchError]]:
    found = attempt([paths[number] for number in numbers], reader, options or Options())
    if len(numbers) == 1 or not isinstance(found, WorkbenchError):
        return [(numbers, found)]
    half = len(numbers) // 2
    return [one for part in (numbers[:half], numbers[half:]) for one in load_part(part, paths, reader, options)]


def cache_folder() -> Path:
    """`$WORKBENCH_CACHE`, else `torch-workbench` in the user's cache folder."""
    if chosen := os.environ.get("WORKBENCH_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch-workbench"


def cache_key(paths: Sequence[Path], reader: str) -> str:
    """Changes when a file or the reader's version does."""
    import hashlib  # openssl: megabytes that the child can do without, like the other late imports here

    module = importlib.import_module(reader)
    digest = hashlib.sha256(f"{reader} {module.VERSION}".encode())
    for path in paths:
        try:
            stat = path.stat()
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}", "check the path") from error
        digest.update(f"\0{path}\0{stat.st_size}\0{stat.st_mtime_ns}".encode(errors="surrogateescape"))
    return digest.hexdigest()[:32]


def read_in_child(paths: Sequence[Path], reader: str, target: Path, max_memory: int | None) -> None:
    """Run the reader in a process of its own and turn its end into a result or an error."""
    import subprocess

    size = sum(path.stat().st_size for path in paths)
    memory = max_memory or (1 << 30) + size * (48 if any(p.suffix == ".gz" for p in paths) else 8)
    seconds = 10 + size // 1_000_000  # real recordings take far less
    inherited = os.environ.get("PYTHONPATH", "")
    child = subprocess.run(  # noqa: PLW1510  # the status is looked at below
        # -P: a module beside the artefact must not be imported in place of ours.
        [sys.executable, "-P", "-m", "analyzers.store", reader, str(target), str(memory), str(seconds)],
        input=b"\0".join(os.fsencode(path) for path in paths),
        capture_output=True,
        env=os.environ | {"PYTHONPATH": f"{PACKAGE_ROOT}{os.pathsep}{inherited}", "OPENBLAS_NUM_THREADS": "1"},
    )
    if child.returncode:
        raise explain(child, name_of(paths), memory, seconds)


def name_of(paths: Sequence[Path]) -> str:
    return str(paths[0]) if len(paths) == 1 else f"{paths[0].parent} ({len(paths)} files)"


def explain(child: "subprocess.CompletedProcess[bytes]", name: str, memory: int, seconds: int) -> WorkbenchError:
    """The error that a child's end stands for."""
    if child.returncode == FAILED:
        told = msgspec.json.decode(child.stdout)
        kinds = {kind.__name__: kind for kind in (HostileInput, LimitExceeded)}
        return kinds.get(told["kind"], InputError)(f"{name}: {told['message']}", told["hint"])
    if child.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return LimitExceeded(f"{name}: reading took more than {seconds} s of processor time", "is it a real recording?")
    complaint = child.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
    if b"MemoryError" in child.stderr:
        return LimitExceeded(
            f"{name}: reading needs more than {memory >> 20} MiB of memory",
            "raise --max-memory if you trust the file",
        )
    return InputError(
        f"{name}: the reader failed: {complaint[-1]}", "report it with the file, or with its first kilobyte"
    )


def keep(scratch: Path, entry: Path) -> None:
    """Publish what a child wrote; whoever comes second finds the entry there and loses nothing."""
    try:
        scratch.rename(entry)
    except OSError:
        if not (entry / "meta.json").exists():
            raise


def detached(scratch: Path) -> Columns:
    """Columns whose files are gone from the disk already; the mappings keep them readable."""
    columns = Columns(scratch)
    for name in columns:
        columns[name]
    return columns


def prune(folder: Path, limit: int) -> None:
    """Delete the entries used longest ago until the rest fits into `limit` bytes; others may do the same meanwhile."""
    entries = sorted((known for path in folder.iterdir() if (known := entry_of(path))), reverse=True)
    total = 0
    for number, (_, size, path) in enumerate(entries):
        total += size
        if total > limit and number:
            shutil.rmtree(path, ignore_errors=True)


def entry_of(path: Path) -> tuple[float, int, Path] | None:
    """(last used, bytes, path) of an entry; None for what is being read into, or has just gone."""
    if path.name.startswith(SCRATCH) or not (path / "meta.json").exists():
        return None
    try:
        return path.stat().st_mtime, sum(file.stat().st_size for file in path.iterdir()), path
    except OSError:
        return None


def write(folder: Path, columns: Mapping[str, "np.ndarray[Any, Any]"], meta: dict[str, Any]) -> None:
    """Lay columns down so that `Columns(folder)` finds them; `meta.json` comes last and marks the set as whole."""
    for name, column in columns.items():
        np.save(folder / f"{name}.npy", column, allow_pickle=False)
    (folder / "meta.json").write_bytes(msgspec.json.encode(meta | {"__columns__": list(columns)}))


def child(reader: str, target: str, memory: str, seconds: str) -> int:
    """The reading process: limit itself, read, write columns, or say on stdout what is wrong."""
    module = importlib.import_module(reader)
    limit_self(int(memory), int(seconds))
    paths = [Path(os.fsdecode(name)) for name in sys.stdin.buffer.read().split(b"\0")]
    try:
        write(Path(target), *module.read(paths))
    except WorkbenchError as error:
        told = {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
    except (OSError, EOFError) as error:
        told = {"kind": "InputError", "message": str(error), "hint": "was the file copied whole?"}
    except RecursionError:
        told = {"kind": "HostileInput", "message": "nested too deeply", "hint": "no recorder writes such a file"}
    else:
        return 0
    sys.stdout.buffer.write(msgspec.json.encode(told))
    return FAILED


def limit_self(memory: int, seconds: int) -> None:
    """Bound this process's address space (bytes) and processor time (seconds), before any input is opened."""
    for kind, limit in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(kind)
        wanted = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (wanted, wanted))


if __name__ == "__main__":
    sys.exit(child(*sys.argv[1:]))
