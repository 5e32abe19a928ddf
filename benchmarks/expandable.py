"""What expandable segments make usable, and what the finding says of it: python -m benchmarks.expandable SNAPSHOT ...

No GPU is at hand: the requests of recordings that were made on GPUs go through `analyzers.memory.replay.simulator`,
once with ordinary segments, which should reserve what was recorded, and once with expandable ones.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from analyzers.memory.answers.savings import expandable, whole_handles
from analyzers.memory.loading import opened
from analyzers.memory.replay.lifetimes import Replay
from analyzers.memory.replay.simulator import allocated
from analyzers.run import Kind, discover

MIB = 1 << 20


def compared(path: Path) -> Iterator[str]:
    """Recorded, ordinary, expandable, what is split, the bound, what becomes usable, what the finding says; in MiB."""
    [artefact] = discover(path).of(Kind.SNAPSHOT)
    snapshot = opened(artefact)
    for number in snapshot.devices:
        replay = Replay(snapshot.device(number))
        split, bound = whole_handles(replay.trace)
        if not len(replay.trace) or not split:
            continue
        plain, grown = allocated(replay, expands=False), allocated(replay, expands=True)
        usable = plain.reserved - grown.reserved + grown.loose - plain.loose
        told = expandable(replay)
        says = told.frees_bytes if told else 0
        sizes = (replay.trace.reserved_bytes, plain.reserved, grown.reserved, split, bound, usable, says)
        yield f"| {path.stem} | {' | '.join(f'{n / MIB:,.0f}' for n in sizes)} |"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for row in compared(Path(name)):
            print(row, flush=True)
