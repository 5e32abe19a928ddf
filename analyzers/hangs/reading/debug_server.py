"""What PyTorch's debug server tells of all ranks at once: pages saved from it, and the texts it writes by itself.

A page of JSON or stacks has a section a rank. The tables of `/fr_trace` are made from the dumps of all ranks: they
hold neither times nor types nor stacks, and a row that some members did not issue stands for those that did.
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

SUFFIXES = (".html", ".htm", ".txt")
"""Of files that may hold many ranks; `.gz` may follow."""
PAGE_BYTES = 1 << 28
TABLES_BYTES = 1 << 12
"""What gzip's own tables may take before the first byte comes."""
PAGE_SECTION = re.compile(rb"<h2>Rank (\d{1,7}):[^<]*</h2>\s*(<p>Failed[^<]*</p>\s*)?<pre>(.*?)</pre>", re.DOTALL)
TEXT_SECTION = re.compile(rb"^=== Rank (\d{1,7}): \S* ===\n(Error: \d+)?(.*?)(?=^===|\Z)", re.DOTALL | re.MULTILINE)
TABLES = re.compile(rb"<h2>Groups</h2>|^--- Groups ---$", re.MULTILINE)
FAILED = re.compile(
    rb"<h2>Rank (\d{1,7}):[^<]*</h2>\s*<p>Failed to fetch: status=(\d+)|^  Rank (\d{1,7}): (\w+)",
    re.MULTILINE,
)
SAID = {b"503": "refused", b"ConnectionError": "refused", b"408": "timeout", b"Timeout": "timeout"}
"""How the server says that a rank did not answer, in the words of a collection."""

PAGE_TABLE = re.compile(r"<h2>([\w ]+)</h2>\s*<table>(.*?)</table>", re.DOTALL)
PAGE_ROW, PAGE_CELL = re.compile(r"<tr>(.*?)</tr>", re.DOTALL), re.compile(r"<t[hd][^>]*>(.*?)</t[hd]>", re.DOTALL)
TEXT_TABLE = re.compile(r"^--- ([\w ]+) ---\n(.*?)(?=^---|^===|\Z)", re.DOTALL | re.MULTILINE)
ODD_ONE = re.compile(
    r"(?P<rank>\d+): Collective\(.*?collective_name='(?P<collective_name>[^']*)', input_sizes=(?P<input_sizes>.*?),"
    r" output_sizes=(?P<output_sizes>.*?), expected_ranks=.*?collective_state='(?P<collective_state>\w+)'"
)
MESSAGE = re.compile(r"(?P<prefix>.*:)(?P<verb>send|recv) (?P<me>\d+)(?:->|<-)(?P<peer>\d+)")

Row = dict[str, str]


class Section(NamedTuple):
    """What one rank's own server answered."""

    rank: int
    text: bytes


def holds_many(path: Path) -> bool:
    """Whether a file speaks of many ranks, by its suffix and its beginning."""
    if not path.name.removesuffix(".gz").endswith(SUFFIXES):
        return False
    return content_of(path, 64).lstrip().startswith((b"<", b"=== ", b"PARTIAL DATA"))


def content_of(path: Path, limit: int = PAGE_BYTES) -> bytes:
    """The first bytes of a page, inflated if it was gzipped."""
    with path.open("rb") as file:
        if file.peek(2)[:2] != b"\x1f\x8b":
            return file.read(limit)
        try:
            return zlib.decompressobj(wbits=31).decompress(file.read(max(limit, TABLES_BYTES)), limit)
        except zlib.error:
            return b""


def sections(content: bytes) -> list[Section]:
    """The answers of all ranks that gave one."""
    found = [*PAGE_SECTION.finditer(content)] or [*TEXT_SECTION.finditer(content)]
    return [Section(int(one[1]), one[3]) for one in found if not one[2]]


def unanswered(path: Path) -> dict[int, str]:
    """The ranks whose servers did not answer, and how: "refused" or "timeout"."""
    found = [(one[1] or one[3], one[2] or one[4]) for one in FAILED.finditer(content_of(path))]
    return {int(rank): SAID[why] for rank, why in found if why in SAID}


@lru_cache(maxsize=8)
def stacks(path: Path) -> dict[int, str]:
    """What a page or text of stacks holds of each rank."""
    try:
        return {one.rank: html.unescape(one.text.decode(errors="replace")) for one in sections(content_of(path))}
    except OSError:
        return {}


def dumps_of_tables(content: bytes) -> dict[int, dict[str, Any]]:
    """The tables as one dump a rank, each with what its members have issued, in the order of the rows' records."""
    tables = tables_of(content.decode(errors="replace"))
    ranks = {int(row["global_rank"]) for row in tables["NCCL Calls"] if row["global_rank"].isdigit()}
    entries: dict[int, list[dict[str, Any]]] = {rank: [] for rank in sorted(ranks)}
    groups: dict[str, dict[str, Any]] = {}
    for row in sorted(tables["Collectives"], key=lambda row: number(row["record_id"])):
        name, members = row["group_id"], numbers(row["expected_ranks"])
        desc = row["pg_desc"].removeprefix(f"{name}:")
        groups[f"{name} {members}"] = {"name": name, "desc": desc, "ranks": str(members)}
        for rank, issued in issued_by(row, members).items():
            if rank in entries:
                entries[rank].append(issued | {"process_group": (name, desc), "record_id": len(entries[rank])})
    return {
        rank: {
            "version": "",
            "pg_config": {g["name"]: g for g in groups.values() if rank in numbers(g["ranks"])},
            "entries": issued,
        }
        for rank, issued in entries.items()
    }


def issued_by(row: Row, members: list[int]) -> dict[int, dict[str, Any]]:
    """The entry of each rank that a row of `Collectives` stands for."""
    present = set(members).difference(numbers(row.get("missing_ranks", "")))
    if found := MESSAGE.fullmatch(row["collective_name"]):
        return halves(row, found, [rank for rank in members if rank in present], members)
    odd = {int(one["rank"]): one.groupdict() for one in ODD_ONE.finditer(row.get("mismatch_collectives", ""))}
    return {rank: entry(row | odd.get(rank, {})) for rank in sorted(present)}


def halves(row: Row, found: re.Match[str], present: list[int], members: list[int]) -> dict[int, dict[str, Any]]:
    """A send and its recv share a row, which has the name of one of them."""
    me, peer, arrow = found["me"], found["peer"], {"send": "->", "recv": "<-"}
    other = "recv" if found["verb"] == "send" else "send"
    names = {int(me): found[0], int(peer): f"{found['prefix']}{other} {peer}{arrow[other]}{me}"}
    standing = {members[place]: name for place, name in names.items() if place < len(members)}
    return {
        rank: entry(row | {"collective_name": name}) | {"is_p2p": True}
        for rank, name in standing.items()
        if rank in present
    }


def entry(row: Row) -> dict[str, Any]:
    return {
        "collective_seq_id": row["collective_seq_id"],
        "p2p_seq_id": row["p2p_seq_id"],
        "profiling_name": row["collective_name"],
        "input_sizes": shapes(row["input_sizes"]),
        "output_sizes": shapes(row["output_sizes"]),
        "state": row["collective_state"],
    }


def tables_of(text: str) -> dict[str, list[Row]]:
    """The rows of each table by its title; on a page of two backends those of both."""
    found: dict[str, list[Row]] = defaultdict(list)
    for title, body in PAGE_TABLE.findall(text):
        grid = [[html.unescape(cell).strip() for cell in PAGE_CELL.findall(row)] for row in PAGE_ROW.findall(body)]
        found[title] += rows_of(grid)
    for title, body in TEXT_TABLE.findall(text):
        found[title] += rows_of(split_columns(body.splitlines()))
    return found


def rows_of(grid: list[list[str]]) -> list[Row]:
    header, *rows = grid or [[]]
    return [dict(zip(header, row, strict=False)) for row in rows]


def split_columns(lines: list[str]) -> list[list[str]]:
    """The cells of a plain table. Cells may hold single spaces, so columns part where two are blank in every line."""
    lines = [line for line in lines if line.strip()]
    width = max(map(len, lines), default=0) + 2
    padded = "".join(line.ljust(width) for line in lines).encode("ascii", "replace")
    blank = (np.frombuffer(padded, dtype=np.uint8).reshape(-1, width) == ord(" ")).all(axis=0)
    gap = "".join(" " if is_blank else "x" for is_blank in blank.tolist())
    columns = [one.span() for one in re.finditer(r"x+(?: x+)*", gap)]
    return [[line[start:end].strip() for start, end in columns] for line in lines]


def numbers(text: str) -> list[int]:
    """The ranks in a text such as "{0, 4}", ascending."""
    return sorted(int(found) for found in re.findall(r"\d{1,9}", text))


def number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def shapes(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return []
