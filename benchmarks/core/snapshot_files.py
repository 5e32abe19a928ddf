"""Write memory snapshots of several kinds, so that the reader is not tuned on one of them.

`loop` is the job of `benchmarks.snapshots`: few stacks, repeated a million times. `new_stacks` has the fields of torch
2.12 and hardly ever the same stack twice. `plain` is the protocol and the fields of torch 2.2. `serving`, the kind that
is kept aside, has no steps, several streams, private pools, and entries without frames.
"""

import gc
import pickle
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import snapshots

Entry = dict[str, Any]
NEW_FIELDS = ("compile_context", "user_metadata")


@dataclass
class NewStacks(snapshots.Job):
    """The same job, whose calls come from other lines each time, as those of a script that was unrolled."""

    calls: int = 0

    def stack(self, kind: str, layer: int, place: int) -> snapshots.Frames:
        frames = super().stack(kind, layer, place)
        self.calls += 1
        bits = self.calls
        for i in range(1, len(frames) - 13):
            bits, odd = divmod(bits, 2)
            if odd:
                frames[i] = self.frame(f"unrolled_{i}", "/job/unrolled.py", 1000 * layer + i)
        return frames

    def write(self, action: str, address: int, size: int, frames: snapshots.Frames) -> None:
        self.clock += 3
        self.entries.append({
            "action": action, "addr": address, "size": size, "stream": 0, "time_us": self.clock,
            "compile_context": b"N/A".decode(), "user_metadata": b"".decode(), "pool_id": (0, 0), "frames": frames,
        })  # fmt: skip


def new_stacks(entries: int) -> tuple[Any, int]:
    return snapshots.recorded(NewStacks(random.Random(1)), entries), 4


def plain(entries: int) -> tuple[Any, int]:
    content = snapshots.snapshot(entries, seed=2)
    for entry in content["device_traces"][0]:
        for field in NEW_FIELDS:
            del entry[field]
    del content["external_annotations"]
    return content, 2


def serving(entries: int) -> tuple[Any, int]:
    """Requests of random length on four streams, each with its pool; half of the entries have no frames."""
    dice, allocator = random.Random(3), snapshots.Allocator()
    native = [
        {"name": f"at::native::op_{i}(at::Tensor const&)", "filename": "??", "line": 0} for i in range(40)
    ]  # fmt: skip
    python = [{"name": f"decode_{i}", "filename": f"/srv/engine_{i % 7}.py", "line": 10 + i} for i in range(90)]
    trace: list[Entry] = []
    live: list[int] = []
    clock = 1_690_000_000_000_000

    def write(action: str, address: int, size: int) -> None:
        nonlocal clock
        clock += dice.randrange(1, 90)
        entry = {"action": action, "addr": address, "size": size, "stream": address >> 21 & 3, "time_us": clock}
        entry |= {"pool_id": (0, address >> 21 & 3), "compile_context": b"N/A".decode(), "user_metadata": "kv"}
        if len(trace) % 2:
            depth = dice.randrange(8, 30)
            entry["frames"] = dice.sample(native, 4) + python[depth : depth + dice.randrange(5, 50)]
        trace.append(entry)

    while len(trace) < entries:
        if len(live) < 500 or (dice.random() < 0.4 and len(live) < 4000):
            size = 512 << dice.randrange(12)
            live.append(allocator.take(size, []))
            write("alloc", live[-1], size)
        else:
            address = live.pop(dice.randrange(len(live)))
            size = allocator.give(address)
            write("free_requested", address, size)
            write("free_completed", address, size)
    return snapshots.document(allocator.snapshot(), trace, []), 5


def loop(entries: int) -> tuple[Any, int]:
    return snapshots.snapshot(entries), 4


KINDS: dict[str, Callable[[int], tuple[Any, int]]] = {
    "loop": loop,
    "new_stacks": new_stacks,
    "plain": plain,
    "serving": serving,
}
ASIDE = "serving"


def write_file(path: Path, kind: str, entries: int) -> None:
    gc.disable()
    content, protocol = KINDS[kind](entries)
    with path.open("wb") as file:
        pickle.dump(content, file, protocol)


if __name__ == "__main__":
    write_file(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
