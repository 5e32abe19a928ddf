"""Compare the native readers with those in Python, on mutated files: the columns must be equal, byte for byte.

    python -m benchmarks.safety.native_readers [--inputs 50000] [--seed 0] [--only dumps] [--keep FOLDER]

The files are those of recorded and generated jobs, mutated in their structure or byte by byte. A native reader may
leave any file to the one in Python; whatever it reads, Python's reader must read, too, with the same result or the same
error. Prints how many files each of them has read, and each input on which they differ. A crash of the process is a
failure, too: with `--keep` the input that was being read lies in the folder as `current`.
"""

import argparse
import gzip
import json
import pickle
import random
import re
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from analyzers import native
from analyzers.errors import WorkbenchError
from analyzers.hangs.reading import reader as dump_reader
from analyzers.memory.reading import reader as snapshot_reader
from analyzers.traces.reading import reader as trace_reader
from analyzers.traces.reading import stream as trace_stream
from benchmarks.core import snapshot_files, trace_files
from benchmarks.core.dump_files import hangs
from benchmarks.fuzzing.formats import seeds_by_kind
from benchmarks.fuzzing.mutations import mutated

Result = tuple[Any, ...]
SEED_BYTES = 40_000


@dataclass(frozen=True)
class Pair:
    """A reader that can be used with and without its native part.

    `settings` are constants of the reader, each with its module, that have other values here, as the files are smaller
    than those of jobs.
    """

    kind: str
    reader: ModuleType
    seeds: Callable[[], list[tuple[str, bytes]]]
    settings: tuple[tuple[ModuleType, str, int], ...] = ()


def snapshot_seeds() -> list[tuple[str, bytes]]:
    """Return small snapshots of all schemas and protocols."""
    made = []
    for kind, create in snapshot_files.KINDS.items():
        content, protocol = create(60)
        content["segments"] = content["segments"][:6]
        made += [(f"{kind}_{number}.pickle", pickle.dumps(content, number)) for number in {2, 4, protocol}]
        made.append((f"{kind}_tagged.pickle", pickle.dumps(tagged(content), 4)))
    return made + recorded("memory_snapshot")


def tagged(content: dict[str, Any]) -> dict[str, Any]:
    """Return a snapshot with the categories and the tags that this project's recorder writes."""
    [trace, *_] = content["device_traces"]
    categories = ("Parameters", "gradient", "activations", None, "other")
    for number, entry in enumerate(trace):
        entry |= {"category": categories[number % 5], "user_metadata": f"layers.{number % 7}.weight"}
    recorder = {"rank": 3, "limit_bytes": 1 << 34, "blocks": {1 << 40: ["parameter", "layers.0"], 7: [None, None]}}
    annotations = [{"stage": "START", "name": "step#1", "device": 0, "time_us": 5}]
    oom = {"action": "oom", "device_free": 1 << 30, "size": 1 << 31, "stream": 0, "time_us": 9, "frames": []}
    traces = [[*trace, oom], [], [dict(entry) for entry in trace[:9]]]
    return content | {"device_traces": traces, "workbench": recorder, "external_annotations": annotations}


def recorded(kind: str) -> list[tuple[str, bytes]]:
    return [next(iter(files.items())) for files in seeds_by_kind().get(kind, [])]


def dump_seeds() -> list[tuple[str, bytes]]:
    """Return small dumps of NCCL and gloo, of which most entries are done, with launches of several operations."""
    made = recorded("flight_record")
    with tempfile.TemporaryDirectory() as folder:
        hangs.big_set(Path(folder, "dumps"), 64, 150)
        dumps = [pickle.loads(Path(folder, "dumps", f"rank_{rank}").read_bytes()) for rank in (0, 3, 9, 40)]
    for number, content in enumerate(dumps):
        last = content["entries"][-1]
        gloo = [entry | {"state": "scheduled", "retired": True} for entry in content["entries"]]
        for entry in gloo:
            entry["profiling_name"] = entry["profiling_name"].replace("nccl:", "gloo:")
        exchange = [closing(entry) if i % 9 == 0 else entry for i, entry in enumerate(content["entries"])]
        again = [last | {"profiling_name": "nccl:coalesced", "state": "completed"}, *content["entries"][5:]]
        kinds = {"nccl": content["entries"], "gloo": gloo, "exchange": exchange, "again": again}
        for kind, rows in kinds.items():
            changed = content | {"entries": rows}
            made.append((f"{kind}_{number}", pickle.dumps(changed, 2)))
            made.append((f"{kind}_{number}.json", json.dumps(changed, indent=number or None).encode()))
    return made


def closing(entry: dict[str, Any]) -> dict[str, Any]:
    return entry | {"profiling_name": "nccl:coalesced", "is_p2p": True}


def trace_seeds() -> list[tuple[str, bytes]]:
    """Return small traces of all kinds, with texts where others have numbers, and with what no recorder writes."""
    made = []
    with tempfile.TemporaryDirectory() as folder:
        for kind, create in trace_files.KINDS.items():
            path = Path(folder, "trace.json.gz")
            create(path, 60)
            made.append((f"{kind}.json", with_fewer_events(gzip.decompress(path.read_bytes()))))
    return [
        *made,
        ("rare.json", json.dumps({"traceEvents": rare_events()}, indent=1).encode()),
        ("utf8.json", json.dumps({"traceEvents": rare_events()}, ensure_ascii=False).encode()),
        *recorded("trace"),
    ]


def with_fewer_events(text: bytes) -> bytes:
    """Return a trace that ends after about `SEED_BYTES`, in the layout of the given one."""
    cuts = [match.start() for match in re.finditer(rb'\},\s*\{\s*"ph"', text) if match.start() > SEED_BYTES]
    return text[: cuts[0]] + b"}]}" if cuts else text


def rare_events() -> list[dict[str, Any]]:
    """Return events with rare fields, or with values that are rare in a field."""
    plain = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 7, "tid": 8, "ts": 1000.25, "dur": 3.5}
    allocation = plain | {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]"}
    address = {
        "Addr": 1 << 46,
        "Bytes": -512,
        "Device Type": 1,
        "Device Id": 0,
        "Total Allocated": 5,
        "Total Reserved": 9,
    }
    kernel = {"device": 0, "stream": 7, "correlation": 5, "graph id": 3, "est. achieved occupancy %": 31, "bytes": 64}
    sent = {"Collective name": "send", "Process Group Name": 4, "Src Rank": 1, "Dst Rank": 0, "In split size": "[1, 2]"}
    ids = {"pid": "Spans", "tid": "PyTorch Profiler", "args": {"stream": "copies", "correlation": -3}}
    shapes = {"Input Dims": [[2, 3], []], "Concrete Inputs": ['"']}
    changes = [
        {}, ids, {"args": kernel}, {"args": kernel | sent}, {"args": {"finished": False}}, {"ts": 1234.0005},
        {"dur": None}, {"ts": 1.7e15 + 0.25}, {"ts": 1 << 44, "dur": 0.0625}, {"name": 'C:\\temp\n"x"', "cat": "café"},
        {"name": "\U0001f600\u4e2d"}, {"ph": "f", "id": 3}, {"args": shapes}, {"pid": -5}, {"pid": "77", "tid": "077"},
        {"args": {"Sequence number": 4, "Fwd thread id": 1}}, {"args": {"occupancy": {"a": [1, None]}}}, {"ts": -1.5},
        {"args": {"size": "64"}}, {"args": {"correlation": 1.0}}, {"args": {"device": 1 << 40}},
    ]  # fmt: skip
    named = {"ph": "M", "name": "thread_name", "pid": 7, "tid": 8, "args": {"name": "thread 8 (python)"}}
    events = [plain | change for change in changes] + [allocation | {"args": address}, allocation, named]
    return events * 3


PAIRS = (
    Pair("snapshots", snapshot_reader, snapshot_seeds),
    Pair(
        "dumps", dump_reader, dump_seeds,
        ((dump_reader, "TAIL_AT_LEAST", 20), (dump_reader, "TAIL_AT_MOST", 20)),
    ),
    Pair("traces", trace_reader, trace_seeds, ((trace_stream, "BLOCK_BYTES", 6000),)),
)  # fmt: skip


@contextmanager
def switched(pair: Pair, module: Any) -> Iterator[None]:
    """Let a reader use this native module, or with None no native module."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(pair.reader, "native_module", return_value=module))
        for target, name, value in pair.settings:
            stack.enter_context(mock.patch.object(target, name, value))
        yield


class LeftToPython(BaseException):
    """The native reader does not understand the file: there is nothing to compare."""


class Strict:
    """The native module, which raises `LeftToPython` where it would leave a file to the reader in Python."""

    def __init__(self) -> None:
        self.module = native.installed_module()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            made = getattr(self.module, name)(*arguments)
            if made is None:
                raise LeftToPython
            return made

        return call


def result(pair: Pair, path: Path, module: Any) -> Result:
    """Return what a reader makes of a file: its columns as bytes and its `meta`, or its error."""
    try:
        with switched(pair, module):
            columns, meta = pair.reader.read([path])
    except WorkbenchError as error:
        return (type(error).__name__, error.message)
    except (OSError, EOFError, zlib.error, MemoryError, RecursionError) as error:  # as in `analyzers.child`
        return (type(error).__name__,)
    parts = ((name, str(column.dtype), column.shape, column.tobytes()) for name, column in columns.items())
    return (*parts, repr(meta))


def difference(pair: Pair, path: Path) -> str:
    """Return where the readers differ; empty if they do not.

    Raises:
        LeftToPython: The native reader does not read this file.
    """
    with_native, in_python = result(pair, path, Strict()), result(pair, path, None)
    if with_native == in_python:
        return ""
    differing = [str(mine)[:200] for mine, other in zip(with_native, in_python, strict=False) if mine != other]
    return f"{differing or (with_native[:2], in_python[:2])}"[:600]


def compare(pair: Pair, inputs: int, seed: int, keep: Path) -> Counter[str]:
    """Compare the readers on this many mutated files, and return how many ended in which way."""
    rng, seeds, ends = random.Random(seed), pair.seeds(), Counter[str]()
    for number in range(inputs):
        name, body = rng.choice(seeds)
        changed = mutated(rng, name, body) if number else body
        path = keep / f"current{Path(name).suffix}"
        path.write_bytes(changed)
        try:
            differs = difference(pair, path)
        except LeftToPython:
            ends["left to Python"] += 1
            continue
        ends["differ" if differs else "equal"] += 1
        if differs:
            path.rename(keep / f"{pair.kind}_{seed}_{number}{path.suffix}")
            print(f"{pair.kind} {number}: {differs}", flush=True)
    return ends


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=[pair.kind for pair in PAIRS])
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    if native.installed_module() is None:
        sys.exit(
            "error: the native readers are not installed\nhint: with a C++ compiler, pip install --no-deps --editable ."
        )
    total = Counter[str]()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        home = asked.keep or Path(folder)
        home.mkdir(parents=True, exist_ok=True)
        pairs = [pair for pair in PAIRS if not asked.only or pair.kind in asked.only]
        for pair in pairs:
            ends = compare(pair, asked.inputs // len(pairs), asked.seed, home)
            print(f"{pair.kind}: {dict(ends)}", flush=True)
            total += ends
    sys.exit(total["differ"] > 0)


if __name__ == "__main__":
    main()
