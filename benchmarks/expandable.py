"""Compare the memory that expandable segments make usable with the finding about it.

    python -m benchmarks.expandable SNAPSHOT ...

It needs no GPU: the requests in snapshots that were recorded on GPUs are replayed by
`analyzers.memory.simulator`, once with ordinary segments, which should reserve the recorded amount, and once
with expandable segments.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from analyzers.memory.lifetimes import Replay
from analyzers.memory.loading import open_snapshot
from analyzers.memory.scenarios import expandable_segments, remappable_bytes
from analyzers.memory.simulator import simulate
from analyzers.run import Kind, discover

MIB = 1 << 20


def compared(path: Path) -> Iterator[str]:
    """Yield rows in MiB: reserved as recorded, simulated ordinary and expandable; then split, bound, usable, and the
    finding.
    """
    [artefact] = discover(path).of(Kind.SNAPSHOT)
    snapshot = open_snapshot(artefact)
    for number in snapshot.devices:
        replay = Replay(snapshot.device(number))
        split, bound = remappable_bytes(replay.trace)
        if not len(replay.trace) or not split:
            continue
        plain, grown = simulate(replay, expandable=False), simulate(replay, expandable=True)
        usable = plain.reserved - grown.reserved + grown.releasable - plain.releasable
        saving = expandable_segments(replay)
        says = saving.frees_bytes if saving else 0
        sizes = (replay.trace.reserved_bytes, plain.reserved, grown.reserved, split, bound, usable, says)
        yield f"| {path.stem} | {' | '.join(f'{n / MIB:,.0f}' for n in sizes)} |"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for row in compared(Path(name)):
            print(row, flush=True)
