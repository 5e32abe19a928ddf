"""Read the files of recorded runs as trees, lines or records, to be mutated, and write them back."""

import contextlib
import gzip
import json
import math
import pickle
import struct
import tomllib
from pathlib import Path
from typing import Any

from analyzers.kinds import Kind, kind_of
from analyzers.steps.reading.tensorboard import crc32c_of_one, masked

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
LARGEST_SEED = 300_000
CONFIGURATION = "configuration"
"""The kind of the TOML configurations: `workbench config` reads these, no analyzer."""
Files = dict[str, bytes]


def seeds() -> list[Files]:
    """Return sets of files, one set per recorded run; long files are cut so that an input takes milliseconds."""
    folders = [path for path in sorted(FIXTURES.iterdir()) if path.is_dir() and not path.name.endswith("4ranks")]
    runs = [folder for top in folders for folder in parts_of(top)]
    sets = [files_of(run) for run in runs]
    return [files for files in sets if files]


def seeds_by_kind() -> dict[str, list[Files]]:
    """Return single files grouped by kind, so that each format is mutated equally often, even if few files have it."""
    found: dict[str, list[Files]] = {}
    for folder in sorted(path for path in FIXTURES.iterdir() if path.is_dir()):
        for name, body in files_of(folder).items():
            kind = kind_of(folder / name) or Kind.MANIFEST
            found.setdefault(str(kind), []).append({name: body})
    configs = [{"config.toml": path.read_bytes()} for path in sorted((ROOT / "configs").glob("*.toml"))]
    return found | {CONFIGURATION: configs}


def parts_of(folder: Path) -> list[Path]:
    """Return the folders of the sets below a folder; a folder of runs or examples has a set for each."""
    if folder.name in ("traces", "other_trainers", "debug_server"):
        return sorted(path for path in folder.iterdir() if path.is_dir())
    return [folder]


def files_of(folder: Path) -> Files:
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "truth.json")
    files = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    return {name: cut(name, body) for name, body in files.items() if len(body) < LARGEST_SEED}


def cut(name: str, body: bytes) -> bytes:
    """Return the content of the same file with fewer entries."""
    kind, value = parsed(name, body)
    if kind in ("json", "pickle"):
        return written(name, kind, shortened(value))
    if kind == "lines":
        return written(name, kind, value[:40])
    return body


def shortened(value: Any, most: int = 40) -> Any:
    if isinstance(value, dict):
        return {key: shortened(item, most) for key, item in value.items()}
    return [shortened(item, most) for item in value[:most]] if isinstance(value, list) else value


def parsed(name: str, body: bytes) -> tuple[str, Any]:
    """Return (format, content) of a file; the format is pickle, json, records (TensorBoard), lines or bytes."""
    plain = gzip.decompress(body) if name.endswith(".gz") else body
    with contextlib.suppress(Exception):
        if plain[:1] == b"\x80":
            return "pickle", pickle.loads(plain)
        if "tfevents" in name:
            return "records", records(plain)
        if name.endswith(".toml"):
            return "toml", tomllib.loads(plain.decode())
        if plain[:1] in b"{[" and not name.endswith("jsonl"):
            return "json", json.loads(plain)
        return "lines", plain.decode().splitlines(keepends=True)
    return "bytes", plain


def written(name: str, kind: str, value: Any) -> bytes:
    if kind == "pickle":
        body = pickle.dumps(value)
    elif kind == "json":
        body = json.dumps(value).encode()
    elif kind == "toml":
        body = toml(value).encode(errors="surrogatepass")
    elif kind == "records":
        body = b"".join(map(record, value))
    elif kind == "lines":
        body = "".join(value).encode(errors="surrogatepass")
    else:
        body = value
    return gzip.compress(body, 1) if name.endswith(".gz") else body


def toml(value: Any) -> str:
    """Return TOML for sections of keys; values of types that TOML lacks are written as text."""
    if not isinstance(value, dict):
        return toml_value(value)
    plain = [f"{json.dumps(key)} = {toml_value(item)}" for key, item in value.items() if not isinstance(item, dict)]
    sections = [f"[{json.dumps(key)}]\n{toml(item)}" for key, item in value.items() if isinstance(item, dict)]
    return "\n".join([*plain, *sections])


def toml_value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value if isinstance(value, str | int | float | bool) else str(value))


def records(body: bytes) -> list[bytes]:
    found, place = [], 0
    while place < len(body):
        (length,) = struct.unpack_from("<Q", body, place)
        found.append(body[place + 12 : place + 12 + length])
        place += 16 + length
    return found


def record(data: bytes) -> bytes:
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked_crc(head)) + data + struct.pack("<I", masked_crc(data))


def masked_crc(data: bytes) -> int:
    """Return the CRC-32C of `data`, masked as in TFRecord files."""
    return masked(crc32c_of_one(data))
