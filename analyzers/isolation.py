"""Read an artefact in a child process under limits, and start that process in the quickest safe way."""

import importlib
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from analyzers.child import (
    DONE,
    ChildExit,
    Task,
    bytes_on_disk,
    explain,
    memory_of_machine,
    prepare,
    run_forked,
    run_in_new_interpreter,
    unpacked_factor,
)

BYTES_PER_S = 1_000_000
"""The number of bytes for each of which a reader gets one second of processor time, in addition to 20 s.

Real recordings take far less. A reader that does more work per byte defines a smaller `BYTES_PER_S` in its module.
"""


def read_in_child(paths: Sequence[Path], reader: str, target: Path, max_memory: int | None) -> None:
    """Read `paths` with the module `reader` in a child process, which writes the columns to the folder `target`.

    Without `max_memory` (bytes) a child gets 1 GiB plus eight times the size of its files, or 48 times if they are
    gzipped: JSON and pickles grow that much as Python objects.

    Raises:
        InputError: The file is missing, damaged, hostile, or needs more than the limits allow.
    """
    file_bytes = sum(bytes_on_disk(path) for path in paths)
    wanted = (1 << 30) + file_bytes * unpacked_factor(paths)
    memory = min(max_memory or wanted, memory_of_machine())
    speed = getattr(importlib.import_module(reader), "BYTES_PER_S", BYTES_PER_S)
    task = Task(reader, target, paths, memory, seconds=20 + file_bytes // speed)
    ended = _run_in_child(task)
    if ended.status != DONE:
        raise explain(ended, task)


def _run_in_child(task: Task) -> ChildExit:
    """Run a task in a child process, and return how the child ended.

    The child is a fork of this process if this process has a single thread, because starting a Python interpreter takes
    longer than reading a small file. With more threads a server process forks in its place: another thread may hold a
    lock, such as that of the logging module, which would never be released in a fork. Readers of other packages, and
    systems other than Linux, get a new interpreter.
    """
    ours = task.reader.startswith("analyzers.")
    if can_fork():
        if ours:
            # Once here, not in each child: importing takes several times as long as reading a small file.
            prepare(task.reader)
        return run_forked(task)
    if ours and sys.platform == "linux":
        from analyzers.reader_server import run_by_server

        return run_by_server(task)
    return run_in_new_interpreter(task)


def can_fork() -> bool:
    return sys.platform == "linux" and threading.active_count() == 1
