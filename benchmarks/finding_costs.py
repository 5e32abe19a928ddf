"""Measure what each finding costs beside reading the file: python -m benchmarks.finding_costs [ENTRIES].

Files of a million entries or events, of the kinds of `benchmarks.core`, are analysed in this process under Python's
profiler, which adds to the time of our own Python code and not to that of the native reader. Printed are the functions
that find something: those that `describe` and the search for opportunities call, in processor seconds with all that
they call, and their share of all. Exits with 1 if one takes more than a tenth. The first analysis of each kind is not
counted, as it imports modules.
"""

import cProfile
import pstats
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from analyzers.memory import digest as memory
from analyzers.traces import digest as traces
from benchmarks.core import snapshot_files, trace_files

ENTRIES, FIRST_ENTRIES = 1_000_000, 20_000
SHARE_AT_MOST, SHARE_PRINTED = 0.10, 0.01
SNAPSHOTS, TRACES = "analyzers/memory/", "analyzers/traces/opportunities/"
CALLERS = {SNAPSHOTS: ("describe", "further_uses"), TRACES: ("waits", "communication", "work_of_device")}
"""{folder of the functions to print: the functions that call them}."""


class Kind(NamedTuple):
    """A kind of file: how it is written, what reads and analyses it, and the folder of what finds something."""

    name: str
    write: Callable[[Path, int], object]
    read: Callable[[list[Path]], object]
    folder: str


class Cost(NamedTuple):
    """The processor seconds of a function with all that it calls, and its share of reading and analysing the file."""

    function: str
    seconds: float
    share: float


def snapshots(kind: str) -> Kind:
    return Kind(f"snapshot, {kind}", lambda path, n: snapshot_files.write_file(path, kind, n), memory.read, SNAPSHOTS)


def recorded(kind: str) -> Kind:
    return Kind(f"trace, {kind}", trace_files.KINDS[kind], traces.read, TRACES)


def costs(kind: Kind, path: Path) -> tuple[float, list[Cost]]:
    """Return the processor seconds of reading and analysing a file, and the cost of each finding, the largest first."""
    profiler = cProfile.Profile(time.process_time)
    profiler.runcall(kind.read, [path])
    statistics = pstats.Stats(profiler)
    total = statistics.total_tt  # type: ignore[attr-defined]
    found = [Cost(name, seconds, seconds / total) for name, seconds in findings(statistics.stats, kind.folder)]  # type: ignore[attr-defined]
    return total, sorted(found, key=lambda cost: -cost.seconds)


def findings(entries: dict[Any, Any], folder: str) -> Iterator[tuple[str, float]]:
    """Yield (function, seconds) for each profiled function of `folder` that one of its `CALLERS` calls."""
    for (file, _, name), (*_, callers) in entries.items():
        seconds = [spent[3] for (by, _, caller), spent in callers.items() if folder in by and caller in CALLERS[folder]]
        if seconds and folder in file:
            yield f"{Path(file).stem}.{name}", sum(seconds)


def main(arguments: Sequence[str]) -> int:
    """Print the costs for each kind of file; return 1 if a finding takes more than a tenth."""
    entries = int(arguments[0]) if arguments else ENTRIES
    kinds = [*map(snapshots, ("loop", "new_stacks", "plain")), *map(recorded, ("cuda", "foreign", "gloo"))]
    dearest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            path = Path(folder, "file.pickle" if kind.folder == SNAPSHOTS else "trace.json.gz")
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
