"""Mutate inputs: in their structure (values, keys, lines, fields of records), or byte by byte."""

import contextlib
import gzip
import math
import random
import re
import struct
from collections.abc import Sequence
from typing import Any

from benchmarks.fuzzing.formats import Files, parsed, written

MARKUP = "<script>alert(1)</script>"
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2, 255, 2**31, 2_000_000_000, 2**63 - 1, 2**63, -(2**63), 10**30, 0.5, -0.0, 1e308, math.nan,
    math.inf, -math.inf, "", "²", "-1", "1e999", "NaN", "0x7f", "\uff12", "\x1b[31mred\x1b]0;t\x07", "\u202eevil",
    "\ud800", "\0", "a" * 5000, "../../etc/passwd", "rank_2000000000", "[0, 1, 2000000000]", "a\r\nb", "%s{0}", MARKUP,
    [], {}, [[]], [None], {"": {}}, [0, "a", None, {}], {"name": 3}, "[" * 200, ["x"] * 300,
)  # fmt: skip


def of_ranks(rng: random.Random, seeds: Sequence[Files], ranks: int) -> Files:
    """Return mutated files of the same kind, named as if the ranks of a job had written them."""
    files: Files = {}
    for rank in range(ranks):
        [(name, body)] = rng.choice(seeds).items()
        name = NUMBERED.sub(lambda found, rank=rank: f"{found[1]}{rank}", name) if ranks > 1 else name
        files[f"{rank}/{name}" if name in files else name] = mutated(rng, name, body)
    return files


NUMBERED = re.compile(r"(rank_?|stacks_|groups_|exit_|heartbeat_|/)\d+")
"""The numbers of ranks in the names of files."""


def mutant(rng: random.Random, files: Files) -> tuple[int, Files]:
    """Return (number of mutated files, files): some files of a set, of which one to three are mutated."""
    names = rng.sample(sorted(files), min(len(files), rng.randint(1, 8)))
    chosen = {name: files[name] for name in names}
    changed = rng.sample(names, min(len(names), rng.randint(1, 3)))
    for name in changed:
        chosen[name] = mutated(rng, name, chosen[name])
    if rng.random() < 0.05:
        name = rng.choice(names)
        chosen[renamed(rng, name)] = chosen.pop(name)
    return len(changed), chosen


def renamed(rng: random.Random, name: str) -> str:
    return re.sub(r"\d+", lambda match: rng.choice([match[0], "2000000000", "9" * 30, "-1", "²"]), name)[-200:]


def mutated(rng: random.Random, name: str, body: bytes) -> bytes:
    if rng.random() < 0.25:
        return any_bytes(rng, body) if rng.random() < 0.5 else inner_bytes(rng, body)
    kind, value = parsed(name, body)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if kind in ("json", "pickle", "toml"):
            value = any_tree(rng, value, binary=kind == "pickle")
        elif kind == "lines":
            value = any_lines(rng, value)
        elif kind == "records" and value:
            place = rng.randrange(len(value))
            value[place] = rng.choice((any_bytes, any_fields))(rng, value[place])
        else:
            value = any_bytes(rng, value) if isinstance(value, bytes) else value
    with contextlib.suppress(RecursionError, ValueError, TypeError):
        return written(name, kind, value)
    return body


def inner_bytes(rng: random.Random, body: bytes) -> bytes:
    """Mutate the content of a compressed file; the compression itself stays valid."""
    if body[:2] != b"\x1f\x8b":
        return any_bytes(rng, body)
    return gzip.compress(any_bytes(rng, gzip.decompress(body)), 1)


def any_bytes(rng: random.Random, body: bytes) -> bytes:
    data = bytearray(body)
    for _ in range(rng.choice((1, 1, 3, 20))):
        place, action = rng.randrange(len(data) + 1), rng.randrange(6)
        if action == 0:
            del data[place:]
        elif action == 1:
            data[place : place + rng.randint(1, 64)] = b""
        elif action == 2:
            data[place:place] = rng.choice((b"\0" * 16, b"[" * 5000, b"\xff\xfe", b"\x1b[2J", MARKUP.encode(), b"\n"))
        elif action == 3:
            data[place:place] = data[place : place + rng.randint(1, 400)]
        elif place < len(data):
            data[place] = rng.randrange(256)
    return bytes(data)


def any_fields(rng: random.Random, message: bytes) -> bytes:
    """Drop, repeat, exchange or replace a field of a protobuf message, or of a message inside it."""
    fields = fields_of(message)
    if not fields:
        return any_bytes(rng, message)
    place, action = rng.randrange(len(fields)), rng.randrange(6)
    tag, content = fields[place]
    if action == 0:
        del fields[place]
    elif action == 1:
        fields *= 2
    elif action == 2:
        fields.reverse()
    elif action == 3:
        fields[place] = (tag ^ rng.choice((1, 2, 5, 8, 64)), content)
    elif tag & 7 == LENGTH_PREFIXED and action == 4:
        fields[place] = (tag, any_fields(rng, content) if fields_of(content) else any_bytes(rng, content))
    else:
        fields[place] = (tag, odd_field(rng, tag & 7))
    return b"".join(map(field_bytes, fields))


LENGTH_PREFIXED = 2
FIXED = {1: 8, 5: 4}
"""{wire type of protobuf with a fixed width: number of bytes}."""


def odd_field(rng: random.Random, wire: int) -> bytes:
    if wire in FIXED:
        number = rng.choice((math.nan, math.inf, -math.inf, 1e308, -0.0, 0.0, -1.0))
        return struct.pack("<d", number) if wire == 1 else struct.pack("<f", min(max(number, -1e38), 1e38))
    if wire == LENGTH_PREFIXED:
        return str(rng.choice(ODD)).encode(errors="replace")
    return rng.choice((b"\0", b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x7f", b"\x80\x80\x01"))


def fields_of(message: bytes) -> list[tuple[int, bytes]]:
    """Return (tag, content) of each field; an empty list if the bytes are not a message."""
    fields, place = [], 0
    try:
        while place < len(message):
            start, place = place, end_of_varint(message, place)
            tag = varint(message[start:place])
            start = place
            if tag & 7 == LENGTH_PREFIXED:
                start = end_of_varint(message, place)
                place = start + varint(message[place:start])
            elif tag & 7 in FIXED:
                place += FIXED[tag & 7]
            elif tag & 7 == 0:
                place = end_of_varint(message, place)
            else:
                return []
            fields.append((tag, message[start:place]))
    except IndexError:
        return []
    return fields if place == len(message) else []


def end_of_varint(message: bytes, place: int) -> int:
    while message[place] & 0x80:
        place += 1
    return place + 1


def varint(content: bytes) -> int:
    return sum((byte & 0x7F) << 7 * number for number, byte in enumerate(content))


def as_varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


def field_bytes(field: tuple[int, bytes]) -> bytes:
    tag, content = field
    length = as_varint(len(content)) if tag & 7 == LENGTH_PREFIXED else b""
    return as_varint(tag) + length + content


def any_tree(rng: random.Random, root: Any, *, binary: bool) -> Any:
    """Change a random node of a tree of dicts and lists."""
    odd = rng.choice((*ODD, b"\xff\0", (1, 2), {1: 2}) if binary else ODD)
    node = root
    while isinstance(node, dict | list) and node:
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        if not isinstance(node[key], dict | list) or not node[key] or rng.random() < 0.15:
            change(rng, node, key, odd)
            return root
        node = node[key]
    return odd


def change(rng: random.Random, node: Any, key: Any, odd: Any) -> None:
    action = rng.randrange(7)
    if action == 0:
        del node[key]
    elif action == 1:
        node[key] = [node[key]]
    elif action == 2 and isinstance(node, list):
        node.insert(key, node[key])
    elif action == 2:
        node[odd if isinstance(odd, str) else "extra"] = node.pop(key)
    elif action == 3 and isinstance(node[key], int | float):
        node[key] = rng.choice((-node[key], node[key] * 1000, node[key] + 1, float(node[key])))
    elif action == 4:
        node[key] = str(node[key])[:10_000]
    else:
        node[key] = odd


def any_lines(rng: random.Random, lines: list[str]) -> list[str]:
    if not lines:
        return [str(rng.choice(ODD))]
    lines, place, action = list(lines), rng.randrange(len(lines)), rng.randrange(7)
    if action == 0:
        del lines[place]
    elif action == 1:
        lines.insert(place, lines[place])
    elif action == 2:
        lines.insert(place, f"{rng.choice(ODD)!s}\n")
    elif action == 3:
        other = rng.randrange(len(lines))
        lines[place], lines[other] = lines[other], lines[place]
    else:
        lines[place] = odd_token(rng, lines[place])
    return lines


def odd_token(rng: random.Random, line: str) -> str:
    tokens = list(re.finditer(r"\d+(?:\.\d+)?|\w+|[^\w\s]", line))
    if not tokens:
        return line
    token = rng.choice(tokens)
    return line[: token.start()] + str(rng.choice(ODD)) + line[token.end() :]
