"""Read Flight Recorder dumps into columns. One child process reads all dumps of a set, one after the other.

From each dump three things are kept: the last operations (further back, if needed, to the first one that has not
completed); how far the rank got in each process group; and the groups and their status. The rest is dropped before the
next file is opened. So memory grows with the number of ranks and groups, not with the number of entries: keeping 4096
dumps of 2000 entries would take 11 GiB.
"""

import gzip
import io
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from analyzers import unpickle
from analyzers.columns import Column, narrowed
from analyzers.errors import InputError
from analyzers.files import decoded_json, open_regular
from analyzers.hangs.reading import debug_server
from analyzers.hangs.reading.dump_entry import (
    ENDS,
    Columns,
    Entry,
    Interned,
    Numbering,
    Ops,
    end_columns,
    group_of,
    integers,
    is_done,
    launch,
    native_ops,
    ops_of,
    statuses,
    text,
    whole,
)
from analyzers.native import native_module
from analyzers.store import code_version


class NativeDump(dict[str, Any]):
    """A dump in the form that `reader` needs; `left_out` entries of the file are missing in it.

    A missing entry is done. It is older than the first entry that is not done, and older than the last entries. It is
    neither the first nor the last of its process group, and does not close a launch of a later entry. The last entries,
    and all entries from the first one that is not done, are in `recent` instead of among the entries, unless `recent`
    is None.
    """

    def __init__(self, content: dict[str, Any], left_out: int, recent: dict[str, Any] | None) -> None:
        super().__init__(content)
        self.left_out = left_out
        self.recent = recent


def read_natively(pickled: IO[bytes], tail: int) -> NativeDump | None:
    """Return the dump that a pickle holds, with at least its last `tail` entries.

    The result is None if there is no native reader, or if it does not understand the file.
    """
    module = native_module()
    return _native_dump(module.read_dump(pickled, tail) if module else None)


def _read_json_natively(text: bytes, tail: int) -> NativeDump | None:
    module = native_module()
    return _native_dump(module.read_json_dump(text, tail) if module else None)


def _native_dump(made: Any) -> NativeDump | None:
    """Return what the native reader made of a dump; None if it made nothing."""
    if made is None:
        return None
    content, (left_out, recent) = made
    return NativeDump(content, left_out, recent)


VERSION = code_version(Path(__file__).parents[1])
_TAIL_ROWS = 64_000
"""The number of last operations that are kept of all dumps of a set together; each file gets an equal part."""
TAIL_AT_LEAST, TAIL_AT_MOST = 64, 1024
"""The smallest and the largest number of completed operations that are kept of one rank."""
_ENDS_CHECKED = 256
"""The number of entries at each end of a dump that are checked for a completed operation.

If there is none, the dump holds only unfinished operations.
"""
_LAST = 8
"""The number of last entries whose process groups are checked to recognise the wrapper of the debug mode."""
_COALESCED = "nccl:coalesced"
"""The name of the entry with which NCCL ends a launch of several operations."""

OPS = (
    "dump", "group", "seq", "p2p_seq", "record", "signature", "stack", "started", "done", "retired",
    "created_ns", "completed_ns", "p2p", "timeout_ms",
)  # fmt: skip
_POSITIONS = ("dump", "group", "first", "enqueued", "completed", "pg_id")


def read(paths: list[Path]) -> tuple[dict[str, Column], dict[str, Any]]:
    """Return the columns `ops.*` and `positions.*` of the dumps in these files, and a dict with facts about the dumps.

    `ops` has one row for each operation, with the fields `OPS`. `positions` has one row for each process group of a
    dump, with the fields `_POSITIONS`. The list `dumps` in the dict has one item for each dump: the index of its file
    in `paths` (`path`), its `rank` if a page of the debug server names it, and a `problem` if the dump could not be
    read. Numbers in the columns refer to the other lists of the dict: `groups`, `signatures`, `stacks` and `members`.
    """
    tables = Tables(tail=max(TAIL_AT_LEAST, min(TAIL_AT_MOST, _TAIL_ROWS // max(1, len(paths)))))
    # Decoding makes millions of objects and no cycles: collecting garbage meanwhile would only cost time.
    with unpickle.gc_paused():
        for number, path in enumerate(paths):
            for rank, content in sources(path, tables.tail):
                tables.dumps.append(_read_one(tables, content) | {"path": number, "rank": rank})
    return tables.columns(), tables.meta()


def _read_one(tables: "Tables", content: Callable[[], Any]) -> dict[str, Any]:
    """Add one dump to `tables`, and return the facts about it for `meta["dumps"]`.

    `content` is a function that reads the dump and returns it. If the function fails, the only fact is the `problem`,
    an error text.
    """
    try:
        return tables.add(len(tables.dumps), checked(content()))
    except InputError as error:
        return {"problem": error.message}
    except MemoryError:
        return {"problem": "reading it needs too much memory"}
    except (OSError, EOFError, RecursionError) as error:
        return {"problem": str(error) or type(error).__name__}


def sources(path: Path, tail: int) -> list[tuple[int | None, Callable[[], Any]]]:
    """Return a (rank, function) pair for each dump in a file; the function reads the dump and returns it.

    Most files hold one dump; its rank is then None, because only the file name shows the rank. A page of PyTorch's
    debug server holds one dump for each rank. `tail` is the number of completed entries that must be read.
    """
    try:
        page = debug_server.content_of(path) if debug_server.holds_many(path) else b""
    except OSError:
        page = b""  # reading it as a dump reports what is wrong
    if debug_server.TABLES.search(page):
        return [(rank, partial(dict, dump)) for rank, dump in debug_server.dumps_of_tables(page).items()]
    answers: list[tuple[int | None, Callable[[], Any]]] = [
        (section.rank, partial(decode, section.text, tail)) for section in debug_server.split_sections(page)
    ]
    return answers or [(None, partial(parse, path, tail))]


def parse(path: Path, tail: int) -> Any:
    """Return the content of a dump file, which is a pickle or JSON and may be gzipped.

    It may lack entries that are done and come before the last `tail` ones (`NativeDump`).

    Raises:
        InputError: The content is damaged, or in neither format.
        OSError: The file cannot be read.
    """
    with open_regular(path) as file:
        # 1f 8b begins a gzip stream, 80 a pickle of protocol 2 or later.
        zipped = file.peek(2)[:2] == b"\x1f\x8b"
        # The unpickler is three times faster over a stream with `peek`, which a GzipFile lacks.
        stream = io.BufferedReader(gzip.GzipFile(fileobj=file)) if zipped else file
        is_pickle = stream.peek(1)[:1] == b"\x80"
        if not is_pickle:
            return decode(stream.read(), tail)
        if (native := read_natively(stream, tail)) is not None:
            return native
        stream.seek(0)
        return unpickle.load(stream)


def checked(content: Any) -> dict[str, Any]:
    """Return `content` unchanged if it has the form of a Flight Recorder dump.

    Raises:
        InputError: The content is anything else.
    """
    if not isinstance(content, dict) or not isinstance(content.get("entries", []), list):
        raise InputError("not a Flight Recorder dump", "give the folder that holds one dump for each rank")
    return content


def decode(text: bytes, tail: int) -> Any:
    """Return the content of a dump in JSON; it may lack entries as `parse` says.

    Raises:
        InputError: The text is not JSON.
    """
    if (native := _read_json_natively(text, tail)) is not None:
        return native
    try:
        return decoded_json(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"not readable as JSON: {error}", "copy the file again: it may be truncated") from error


class Tables:
    """The data kept of a set of dumps: rows of numbers, and the lists of values to which the numbers refer.

    `ops` and `positions` hold their rows one after the other; `tail` is how many of a dump's last operations are kept.
    """

    def __init__(self, tail: int) -> None:
        self.tail = tail
        self.ops, self.positions = array("q"), array("q")
        self.dumps: list[dict[str, Any]] = []
        self.numbers = Numbering()
        self.members = Interned[str]()
        self.configured = Interned[tuple[str, int]]()

    def add(self, index: int, dump: dict[str, Any]) -> dict[str, Any]:
        """Add the entries of one dump to the tables, and return the facts about the dump for `meta["dumps"]`.

        `index` is the number of the dump, which its rows refer to.
        """
        self.numbers.begin_dump()
        ops = operations(dump, self.tail, self.numbers)
        columns = [ops.recent[name] for name in OPS[1:]]
        self.ops.extend(chain.from_iterable(zip(repeat(index, ops.size), *columns, strict=True)))
        # Old entries are all done, so their first and last ones give the positions.
        ends = end_columns(ops.old[:1] + newest(ops.old), self.numbers)
        self.positions.extend(chain.from_iterable(progress(index, {n: ends[n] + ops.recent[n] for n in ENDS})))
        self.configure(dump.get("pg_config"))
        groups = [self.numbers.group(entry) for entry in ops.old[-_LAST:]] + ops.recent["group"]
        return {
            "entries": len(ops.old) + ops.left_out + ops.size,
            "frames": ops.has_frames,
            "done": len(ops.old) + ops.left_out + sum(ops.recent["done"]),
            # With onlyActive NCCL leaves completed entries out, so that the numbers begin late.
            "active_only": ops.first("seq", "collective_seq_id") > 1,
            "overwritten": overwritten(ops, statuses(dump.get("pg_status"))),
            # The wrapper of TORCH_DISTRIBUTED_DEBUG=DETAIL has neither name nor description.
            "detail": set(groups[-_LAST:]) == {self.numbers.groups.numbers.get(("", ""))},
        }

    def configure(self, config: Any) -> None:
        """Store the process groups in a dump's field `pg_config`, as pairs (name, number of its list of members).

        The number is an index in `meta["members"]`. Every dump repeats the same long lists, so each distinct list is
        stored there once.
        """
        for name, group in config.items() if isinstance(config, dict) else ():
            if isinstance(group, dict):
                self.configured((text(name), self.members(str(group.get("ranks", "")))))

    def columns(self) -> dict[str, Column]:
        return columns("ops", OPS, self.ops) | columns("positions", _POSITIONS, self.positions)

    def meta(self) -> dict[str, Any]:
        """Return the lists to which the numbers in the columns refer, and the facts about each dump."""
        return {
            "dumps": self.dumps,
            "groups": self.numbers.groups.values(),
            "signatures": self.numbers.signatures.values(),
            "stacks": self.numbers.stacks.values(),
            "configured": self.configured.values(),
            "members": [integers(value) for value in self.members.values()],
        }


def operations(dump: dict[str, Any], tail: int, numbers: Numbering) -> Ops:
    """Return the operations of a dump; the last `tail`, and all from the first that is not done, count as recent."""
    entries = dump.get("entries", [])
    left_out = 0
    if isinstance(dump, NativeDump):
        if dump.recent is not None:
            return native_ops(entries, dump.left_out, dump.recent, numbers)
        left_out = dump.left_out
    old, recent = split(_with_closed_launches([entry for entry in entries if isinstance(entry, dict)]), tail)
    return replace(ops_of(old, recent, numbers), left_out=left_out)


def _with_closed_launches(entries: list[Entry]) -> list[Entry]:
    """Return the entries of a dump, with all operations of a completed launch marked as completed.

    A launch is a group of operations that NCCL started together (coalesced). NCCL marks only the entry that closes a
    launch as completed; the operations inside stay `scheduled` for ever. If only unfinished entries were dumped, the
    closing entry of a finished launch is absent; several sends and receives of one launch without such an entry then
    count as completed.
    """
    closing = {launch(e): is_done(e) for e in entries if e.get("profiling_name") == _COALESCED}
    closed = {key for key, done in closing.items() if done}
    if not closed and _only_unfinished(entries):
        together = Counter(launch(e) for e in entries if e.get("is_p2p"))
        closed = {key for key, count in together.items() if count > 1 and key not in closing}
    if not closed:
        return entries
    return [e | {"state": "completed"} if not is_done(e) and launch(e) in closed else e for e in entries]


def _only_unfinished(entries: list[Entry]) -> bool:
    """Return whether the recorder left completed entries out of a dump.

    This is so if no entry is done, and the record ids show that entries are missing.
    """
    gaps = bool(entries) and whole(entries[-1].get("record_id")) >= len(entries)
    return gaps and not any(map(is_done, (*entries[:_ENDS_CHECKED], *entries[-_ENDS_CHECKED:])))


def split(entries: list[Entry], tail: int) -> tuple[list[Entry], list[Entry]]:
    """Split the entries of a dump into (old, recent); operations of old entries have all completed.

    Recent entries are the last `tail` entries, or all from the first one that is not done if this one is farther back.
    """
    old = entries[:-tail]
    pending = next((i for i, entry in enumerate(old) if entry.get("state") != "completed" and not is_done(entry)), None)
    cut = len(old) if pending is None else pending
    return old[:cut], entries[cut:]


def progress(index: int, ends: Columns) -> list[tuple[int, ...]]:
    """Return a row of `_POSITIONS` for each process group in dump number `index`: how far the rank got in the group.

    A row has three sequence numbers of collectives (-1: none): `first` is the number of the oldest entry, `enqueued`
    the highest number issued, and `completed` the highest number completed. `ends` are columns of entries.
    """
    first: dict[int, int] = {}
    enqueued: dict[int, int] = {}
    completed: dict[int, int] = {}
    pg_ids: dict[int, int] = {}
    for group, pg_id, is_p2p, seq, done in zip(*(ends[name] for name in ENDS), strict=True):
        pg_ids[group] = pg_id
        if is_p2p:
            continue
        first.setdefault(group, seq)
        enqueued[group] = max(seq, enqueued.get(group, -1))
        if done:
            completed[group] = max(seq, completed.get(group, -1))
    return [
        (index, group, first.get(group, -1), enqueued.get(group, -1), completed.get(group, -1), pg_id)
        for group, pg_id in pg_ids.items()
    ]


def overwritten(ops: Ops, status: dict[str, list[int]]) -> bool:
    """Return whether the ring buffer has lost unfinished operations, so that the first of them is not in the dump.

    `status` is the field `pg_status`, whose third value is the last completed sequence number of a process group. If
    the oldest entry of a group is not done, its number must be this value plus one; a higher number means that entries
    in between were lost. Whether `status` counts sends and receives depends on the backend, so the lower of two numbers
    of the entry is compared: `op_id` counts all operations of the group, the sequence number only collectives, or only
    sends and receives.
    """
    # A ring that still holds its first entry has lost nothing.
    if ops.first("record", "record_id") <= 0:
        return False
    recent = ops.recent
    oldest = dict(zip(reversed(ops.pg_texts), range(ops.size - 1, -1, -1), strict=True))
    before = {text(entry.get("pg_id")) for entry in ops.old}  # all of them are done
    waiting = {pg: at for pg, at in oldest.items() if pg in status and pg not in before and not recent["done"][at]}
    return any(
        min(recent["op_id"][at], recent["p2p_seq" if recent["p2p"][at] else "seq"][at]) > status[pg][2] + 1
        for pg, at in waiting.items()
    )


def newest(entries: list[Entry]) -> list[Entry]:
    """Return, for each process group in a dump, its last collective and its last send or receive, as entries."""
    try:
        return list({(e["process_group"], e["is_p2p"]): e for e in entries}.values())
    except (KeyError, TypeError):  # JSON has lists in place of tuples
        return list({(group_of(e), bool(e.get("is_p2p"))): e for e in entries}.values())


def columns(prefix: str, names: Sequence[str], rows: "array[int]") -> dict[str, Column]:
    """Return the columns `prefix.name` of a table; `rows` has the numbers of all rows, one row after the other.

    Each row has one number for each of `names`.
    """
    matrix = (
        np.frombuffer(rows, dtype=np.int64).reshape(-1, len(names))
        if rows
        else np.zeros((0, len(names)), dtype=np.int64)
    )
    return {f"{prefix}.{name}": narrowed(matrix[:, i]) for i, name in enumerate(names)}
