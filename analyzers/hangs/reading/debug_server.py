"""Read what PyTorch's debug server reports about all ranks at once: saved pages, and text files written by the server.

A page with JSON dumps or with stacks has one section for each rank. The page `/fr_trace` has tables instead, which the
server makes from the Flight Recorder dumps of all ranks. These tables hold no times, dtypes or stacks. Each row of the
table `Collectives` is an operation and names the group members that did not issue it.
"""

import html
import re
import zlib
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from analyzers.files import open_regular, rank_in, read_at_most
from analyzers.hangs.reading.side_formats import AnswerStatus

SUFFIXES = (".html", ".htm", ".txt")
"""The suffixes of files that may have the dumps of many ranks; `.gz` may follow a suffix."""
_PAGE_BYTES = 1 << 28
"""The largest number of bytes that are read of a page; a page of a thousand ranks has some 100 MiB."""
_GZIP_TABLES_BYTES = 1 << 12
"""The number of compressed bytes with which gzip can always decompress at least the first byte.

Its header and Huffman tables come first.
"""
_PAGE_SECTION = re.compile(rb"<h2>Rank (\d{1,7}):[^<]*</h2>\s*(<p>Failed[^<]*</p>\s*)?<pre>(.*?)</pre>", re.DOTALL)
_TEXT_SECTION = re.compile(rb"^=== Rank (\d{1,7}): \S* ===\n(Error: \d+)?(.*?)(?=^===|\Z)", re.DOTALL | re.MULTILINE)
TABLES = re.compile(rb"<h2>Groups</h2>|^--- Groups ---$", re.MULTILINE)
FAILED = re.compile(
    rb"<h2>Rank (\d{1,7}):[^<]*</h2>\s*<p>Failed to fetch: status=(\d+)|^  Rank (\d{1,7}): (\w+)",
    re.MULTILINE,
)
_FAILURES = {
    b"503": AnswerStatus.REFUSED,
    b"ConnectionError": AnswerStatus.REFUSED,
    b"408": AnswerStatus.TIMEOUT,
    b"Timeout": AnswerStatus.TIMEOUT,
}
"""{code with which the server reports that it could not reach a rank: status of this rank's answer}."""

_PAGE_TABLE = re.compile(r"<h2>([\w ]+)</h2>\s*<table>(.*?)</table>", re.DOTALL)
_PAGE_ROW, _PAGE_CELL = re.compile(r"<tr>(.*?)</tr>", re.DOTALL), re.compile(r"<t[hd][^>]*>(.*?)</t[hd]>", re.DOTALL)
_TEXT_TABLE = re.compile(r"^--- ([\w ]+) ---\n(.*?)(?=^---|^===|\Z)", re.DOTALL | re.MULTILINE)
_MISMATCHED = re.compile(
    r"(?P<rank>\d+): Collective\(.*?collective_name='(?P<collective_name>[^']*)', input_sizes=(?P<input_sizes>.*?),"
    r" output_sizes=(?P<output_sizes>.*?), expected_ranks=.*?collective_state='(?P<collective_state>\w+)'"
)
MESSAGE = re.compile(r"(?P<prefix>.*:)(?P<verb>send|recv) (?P<me>\d+)(?:->|<-)(?P<peer>\d+)")

Row = dict[str, str]


class Section(NamedTuple):
    """The section of a page about one rank: its global rank, and the raw content (JSON or stacks)."""

    rank: int
    text: bytes


def holds_many(path: Path) -> bool:
    """Return whether a file may hold the dumps or stacks of many ranks, judged by its suffix and first bytes."""
    if not path.name.removesuffix(".gz").endswith(SUFFIXES):
        return False
    return content_of(path, 64).lstrip().startswith((b"<", b"=== ", b"PARTIAL DATA"))


def content_of(path: Path, limit: int = _PAGE_BYTES) -> bytes:
    """Return the first `limit` bytes of a page, decompressed if it is gzipped; empty if the gzip data is damaged.

    Raises:
        OSError: The file cannot be read.
    """
    with open_regular(path) as file:
        head = read_at_most(file, max(limit, _GZIP_TABLES_BYTES))
        if not head.startswith(b"\x1f\x8b"):
            return head[:limit]
        try:
            # With a limit on the output, because a gzip bomb of some kilobytes can become terabytes.
            return zlib.decompressobj(wbits=31).decompress(head, limit)
        except zlib.error:
            return b""


def split_sections(content: bytes) -> list[Section]:
    """Return one `Section` for each rank that answered, from the raw `content` of a page.

    Ranks for which the page has an error message are left out.
    """
    matches = [*_PAGE_SECTION.finditer(content)] or [*_TEXT_SECTION.finditer(content)]
    # The second group is the server's own message that it could not ask the rank.
    return [Section(int(match[1]), match[3]) for match in matches if not match[2]]


def read_unanswered(path: Path) -> dict[int, AnswerStatus]:
    """Return {rank: why it did not answer} for the ranks that a saved page of the debug server reports as failed."""
    failures = [(match[1] or match[3], match[2] or match[4]) for match in FAILED.finditer(content_of(path))]
    return {int(rank): _FAILURES[code] for rank, code in failures if code in _FAILURES}


# The stack of each rank is asked for separately, and one page has those of all ranks.
@lru_cache(maxsize=8)
def read_stacks(path: Path) -> dict[int, str]:
    """Return {rank: text with its stacks} from a page or text file of the debug server; empty if it cannot be read."""
    try:
        return {
            part.rank: html.unescape(part.text.decode(errors="replace")) for part in split_sections(content_of(path))
        }
    except OSError:
        return {}


def dumps_of_tables(content: bytes) -> dict[int, dict[str, Any]]:
    """Rebuild one Flight Recorder dump for each rank from the tables of the page `/fr_trace`, and return them by rank.

    The entries of a dump are the operations that the rank issued, in the order of issue; operations that the tables do
    not contain are missing.
    """
    tables = _tables_of(content.decode(errors="replace"))
    named = (rank_in(row.get("global_rank", "")) for row in tables["NCCL Calls"])
    ranks = {rank for rank in named if rank is not None}
    entries: dict[int, list[dict[str, Any]]] = {rank: [] for rank in sorted(ranks)}
    groups: dict[str, dict[str, Any]] = {}
    # Rows are grouped by operation; their records restore the order of issue.
    for row in sorted(tables["Collectives"], key=lambda row: number(row["record_id"])):
        name, members = row["group_id"], numbers(row["expected_ranks"])
        desc = row["pg_desc"].removeprefix(f"{name}:")
        groups[f"{name} {members}"] = {"name": name, "desc": desc, "ranks": str(members)}
        for rank, issued in _issued_by(row, members).items():
            if rank in entries:
                # Counted from 0: the reader takes a higher first number to mean that the ring buffer has lost entries.
                entries[rank].append(issued | {"process_group": (name, desc), "record_id": len(entries[rank])})
    return {
        rank: {
            "version": "",
            "pg_config": {g["name"]: g for g in groups.values() if rank in numbers(g["ranks"])},
            "entries": issued,
        }
        for rank, issued in entries.items()
    }


def _issued_by(row: Row, members: list[int]) -> dict[int, dict[str, Any]]:
    """Return {rank: dump entry} for the ranks that issued the operation in one row of the table `Collectives`.

    `members` are the global ranks of the group. The row names the ranks that did not issue the operation; these are
    left out. If the row says that a rank issued a different operation, the entry of this rank has that operation.
    """
    present = set(members).difference(numbers(row.get("missing_ranks", "")))
    if match := MESSAGE.fullmatch(row["collective_name"]):
        return _both_halves(row, match, present, members)
    mismatched = {
        int(part["rank"]): part.groupdict() for part in _MISMATCHED.finditer(row.get("mismatch_collectives", ""))
    }
    return {rank: entry(row | mismatched.get(rank, {})) for rank in sorted(present)}


def _both_halves(row: Row, match: re.Match[str], present: set[int], members: list[int]) -> dict[int, dict[str, Any]]:
    """Return {rank: dump entry} for a send and its matching recv, which share one row of the table `Collectives`.

    The row has the name of only one of the two, so the other name is derived. `match` is the name parsed by `MESSAGE`.
    `members` are the global ranks of the group; those in `present` issued their operation, and only these get an entry.
    """
    me, peer, arrow = match["me"], match["peer"], {"send": "->", "recv": "<-"}
    other = "recv" if match["verb"] == "send" else "send"
    names = {int(me): match[0], int(peer): f"{match['prefix']}{other} {peer}{arrow[other]}{me}"}
    name_of = {members[group_rank]: name for group_rank, name in names.items() if group_rank < len(members)}
    return {
        rank: entry(row | {"collective_name": name}) | {"is_p2p": True}
        for rank, name in name_of.items()
        if rank in present
    }


def entry(row: Row) -> dict[str, Any]:
    """Return a row of the table `Collectives` as an entry of a Flight Recorder dump, with the fields that it has."""
    return {
        "collective_seq_id": row["collective_seq_id"],
        "p2p_seq_id": row["p2p_seq_id"],
        "profiling_name": row["collective_name"],
        "input_sizes": shapes(row["input_sizes"]),
        "output_sizes": shapes(row["output_sizes"]),
        "state": row["collective_state"],
    }


def _tables_of(text: str) -> dict[str, list[Row]]:
    """Return {title of a table: its rows} for a page in HTML or plain text.

    A page may have two tables with the same title, one for each backend; the rows of such tables are joined.
    """
    tables: dict[str, list[Row]] = defaultdict(list)
    for title, body in _PAGE_TABLE.findall(text):
        grid = [[html.unescape(cell).strip() for cell in _PAGE_CELL.findall(row)] for row in _PAGE_ROW.findall(body)]
        tables[title] += rows_of(grid)
    for title, body in _TEXT_TABLE.findall(text):
        tables[title] += rows_of(_split_columns(body.splitlines()))
    return tables


def rows_of(grid: list[list[str]]) -> list[Row]:
    """Return the rows of a table as dicts; the keys are the cells of the table's first row.

    Reading a key that a row does not have gives an empty text.
    """
    header, *rows = grid or [[]]
    return [defaultdict(str, zip(header, row, strict=False)) for row in rows]


def _split_columns(lines: list[str]) -> list[list[str]]:
    """Return the cells of a plain-text table, row by row.

    Cells may contain single spaces, so columns are separated only where two or more positions are blank in every
    line.
    """
    lines = [line for line in lines if line.strip()]
    width = max(map(len, lines), default=0) + 2
    # One byte for each character, so that a column of bytes is a column of characters.
    padded = "".join(line.ljust(width) for line in lines).encode("ascii", "replace")
    blank = (np.frombuffer(padded, dtype=np.uint8).reshape(-1, width) == ord(" ")).all(axis=0)
    gap = "".join(" " if is_blank else "x" for is_blank in blank.tolist())
    columns = [match.span() for match in re.finditer(r"x+(?: x+)*", gap)]
    return [[line[start:end].strip() for start, end in columns] for line in lines]


def numbers(text: str) -> list[int]:
    """Return the ranks in a text such as "{0, 4}", ascending."""
    return sorted(int(digits) for digits in re.findall(r"\d{1,9}", text))


def number(text: str) -> int:
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else 0


def shapes(text: str) -> Any:
    """Return the tensor shapes in a cell such as `[[4, 4]]` as lists; an empty list if the cell was truncated."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return []
