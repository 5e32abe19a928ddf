"""Convert step logs to columns: the reader that `analyzers.store` runs in a child process.

Rows are in the order in which they were written, one per rank and step. One child reads several files in turn,
because starting a child for each of thousands of small logs would take too long.
"""

from pathlib import Path
from typing import Any

from analyzers import kinds
from analyzers.errors import InputError
from analyzers.steps.reading import console, console_table, csv_table, gantt, json_table, jsonl, tensorboard
from analyzers.steps.reading.log_lines import Arrays, Log, Table, content_of
from analyzers.store import code_version

VERSION = code_version(Path(__file__).parents[1])
CUT = "check that the file was copied whole"


def _read_console(path: Path) -> Log:
    """Return the steps that torchtitan or this project's trainer printed, else another trainer's rows."""
    log = console.read(path)
    return log if log.lines else Log([], [], raw=console_table.read(path))


def _read_metrics(path: Path) -> Log:
    is_json = kinds.head_of(path).lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"["))
    return Log([], [], raw=(json_table if is_json else csv_table).read(path))


_READERS = {
    kinds.Kind.TENSORBOARD: tensorboard.read_torchtitan_metrics,
    kinds.Kind.GANTT: gantt.read,
    kinds.Kind.LOG: _read_console,
    kinds.Kind.METRICS: _read_metrics,
}
"""{kind of file: function that reads it}; files of all other kinds are JSONL."""


def read(paths: list[Path]) -> tuple[Arrays, dict[str, Any]]:
    """Return the columns and the metadata of the logs at `paths`.

    Columns: `file` is the index into `paths`, `attempt` the index of the file's header; `phase.I`, `cpu.I` and
    `device.I` are the ns of phase `meta.phases[I]`; `tags` has a bit per tag of `meta.tags`; `seq.I` is the sequence
    number of the last collective of process group `meta.groups[I]` (-1: unknown); `dur_ns` is -1 if it is not recorded.
    `meta.files` has for each file its headers, whether it is truncated (`torn`), the number of its damaged lines, or
    the problem that made it unreadable. A log of another trainer has no rows in these columns. It has columns of its
    own: `rawF.I` holds the values of column `meta.files[F].raw.names[I]` of file F.
    """
    table = Table()
    files: list[dict[str, Any]] = []
    raw: Arrays = {}
    for number, path in enumerate(paths):
        try:
            log = _read_one(path)
        except (OSError, EOFError, InputError) as error:
            table.add(number, content_of([]))
            hint = error.hint if isinstance(error, InputError) else CUT
            files.append({"headers": [], "problem": str(error), "hint": hint})
            continue
        table.add(number, content_of(log.lines))
        if log.raw is None:
            files.append({"headers": log.headers, "torn": log.torn, "damaged": log.damaged})
        else:
            columns, file = log.raw.stored(number)
            raw |= columns
            files.append(file)
    return table.columns() | raw, table.meta() | {"files": files}


def _read_one(path: Path) -> Log:
    kind = kinds.kind_of(path, alone=True)
    return _READERS.get(kind, jsonl.read)(path) if kind else jsonl.read(path)
