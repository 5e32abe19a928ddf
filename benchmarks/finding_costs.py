"""Measure what each finding costs beside reading the file: python -m benchmarks.finding_costs [ENTRIES].

Files of a million entries or events, of the kinds of `benchmarks.core`, are analysed in this process under Python's
profiler, which adds to the time of our own Python code and not to that of the native reader. Printed are the functions
that find something: those that `describe` and the search for opportunities call, in processor seconds with all that
they call, and their share of all. Exits with 1 if one takes more than a tenth. The first analysis of each kind is not
counted, as it imports modules.
"""

import cProfile
import pickle
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import NamedTuple, TypeGuard

from analyzers.memory import digest as memory
from analyzers.traces import digest as traces
from benchmarks.core import snapshot_files, trace_files

ENTRIES, FIRST_ENTRIES = 1_000_000, 20_000
SHARE_AT_MOST, SHARE_PRINTED = 0.10, 0.01
SNAPSHOTS = r"analyzers/memory/"
TRACES = r"analyzers/traces/(opportunities|waits|attention|products|communication)\.py"
CALLERS = {SNAPSHOTS: ("describe", "further_uses"), TRACES: ("waits", "communication", "work_of_device")}
"""{pattern of the files of the functions to print: the functions that call them}."""


class Kind(NamedTuple):
    """A kind of file: how it is written, what reads and analyses it, and a pattern of the files that find something."""

    name: str
    write: Callable[[Path, int], object]
    read: Callable[[list[Path]], object]
    files: str


class Cost(NamedTuple):
    """The processor seconds of a function with all that it calls, and its share of reading and analysing the file."""

    function: str
    seconds: float
    share: float


def snapshots(kind: str) -> Kind:
    return Kind(f"snapshot, {kind}", lambda path, n: snapshot_files.write_file(path, kind, n), memory.read, SNAPSHOTS)


def recorded(kind: str) -> Kind:
    return Kind(f"trace, {kind}", trace_files.KINDS[kind], traces.read, TRACES)


def write_failure(path: Path, entries: int) -> None:
    """Write a snapshot with hardly ever the same stack twice, which ends at its peak with a request that fails."""
    content, protocol = snapshot_files.KINDS["new_stacks"](entries)
    [trace] = content["device_traces"]
    live = peak = last = 0
    for number, entry in enumerate(trace):
        live += {"alloc": entry["size"], "free_completed": -entry["size"]}.get(entry["action"], 0)
        # A peak near the end, so that most entries are read.
        if live >= peak and number > len(trace) * 0.9:
            peak, last = live, number
    failed = next(entry for entry in reversed(trace[: last + 1]) if entry["action"] == "alloc")
    trace[last + 1 :] = [failed | {"action": "oom", "size": peak, "device_free": 0}]
    path.write_bytes(pickle.dumps(content, protocol))


FAILED = Kind("snapshot, failed request", write_failure, memory.read, SNAPSHOTS)


def costs(kind: Kind, path: Path) -> tuple[float, list[Cost]]:
    """Return the processor seconds of reading and analysing a file, and the cost of each finding, the largest first."""
    profiler = cProfile.Profile(time.process_time)
    profiler.runcall(kind.read, [path])
    total = sum(entry.inlinetime for entry in profiler.getstats())
    spent = defaultdict[str, float](float)
    for name, seconds in findings(profiler, kind.files):
        spent[name] += seconds
    found = [Cost(name, seconds, seconds / total) for name, seconds in spent.items()]
    return total, sorted(found, key=lambda cost: -cost.seconds)


def findings(profiler: cProfile.Profile, files: str) -> Iterator[tuple[str, float]]:
    """Yield (function, seconds) for each function in `files` that one of its `CALLERS` called."""
    for caller in profiler.getstats():
        if is_in(files, caller.code) and caller.code.co_name in CALLERS[files]:
            for call in caller.calls or []:
                if is_in(files, call.code):
                    yield f"{Path(call.code.co_filename).stem}.{call.code.co_name}", call.totaltime


def is_in(files: str, code: object) -> TypeGuard[CodeType]:
    """Return whether the code of a profiled function is Python code in one of the files that match a pattern."""
    return isinstance(code, CodeType) and re.search(files, code.co_filename) is not None


def main(arguments: Sequence[str]) -> int:
    """Print the costs for each kind of file; return 1 if a finding takes more than a tenth."""
    entries = int(arguments[0]) if arguments else ENTRIES
    kinds = [*map(snapshots, ("loop", "new_stacks", "plain")), FAILED, *map(recorded, ("cuda", "foreign", "gloo"))]
    dearest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            path = Path(folder, "file.pickle" if kind.files == SNAPSHOTS else "trace.json.gz")
            for count in (FIRST_ENTRIES, entries):
                kind.write(path, count)
                total, found = costs(kind, path)
            print(f"{kind.name}: {total:.2f} s")
            for cost in found:
                if cost.share >= SHARE_PRINTED:
                    print(f"    {cost.function:<40} {cost.seconds:.3f} s {cost.share:.1%}")
            dearest = max(dearest, *(cost.share for cost in found), 0.0)
    print(f"the dearest finding: {dearest:.1%} (at most {SHARE_AT_MOST:.0%})")
    return int(dearest > SHARE_AT_MOST)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
