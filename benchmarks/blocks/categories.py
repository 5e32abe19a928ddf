"""Measure how well rules guess the category of memory blocks, compared with the categories that our recorder wrote.

    python benchmarks/blocks/categories.py PATH ...

PATH is a snapshot that our recorder wrote, or a run folder, of which the last snapshots are used. Before guessing, the
information that a recording without our recorder lacks is removed, in four ways: `tags` removes only the categories;
`notes` also the annotations of steps and phases; `python` leaves what stacks="python" records on CUDA, where the
backward pass runs in threads without Python frames; `late` drops the first half of the trace. The results are bytes:
of all blocks in the rest of the trace, and of those live at its peak.
"""

import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from analyzers import store, unpickle
from analyzers.columns import Column
from analyzers.memory.categorise import categorise
from analyzers.memory.lifetimes import Lifetimes, Replay
from analyzers.memory.loading import READER
from analyzers.memory.snapshot import CATEGORIES, UNTAGGED, Category, Snapshot
from analyzers.run import Kind, discover, newest_step

Raw = dict[str, Any]


def without_tags(raw: Raw) -> None:
    del raw["workbench"]
    for trace in raw["device_traces"]:
        for entry in trace:
            entry.pop("category", None)
            entry.pop("user_metadata", None)


def without_notes(raw: Raw) -> None:
    """Remove categories and annotations, except those that PyTorch's optimizers write themselves."""
    without_tags(raw)
    raw["external_annotations"] = [n for n in raw["external_annotations"] if n["name"].startswith("Optimizer.")]


def with_python_stacks(raw: Raw) -> None:
    """Keep only Python frames, and drop the trace before its first Python frame.

    In its first step our recorder has no Python frames, but CUDA's has.
    """
    without_notes(raw)
    raw["device_traces"] = [trace[first_in_python(trace) :] for trace in raw["device_traces"]]
    cut: dict[int, list[Raw]] = {}
    for entry in (*(e for trace in raw["device_traces"] for e in trace), *blocks(raw)):
        frames = entry["frames"]
        entry["frames"] = cut.setdefault(id(frames), python_part(frames))


def first_in_python(trace: list[Raw]) -> int:
    return next((k for k, entry in enumerate(trace) if python_part(entry["frames"])), 0)


def without_beginning(raw: Raw) -> None:
    without_notes(raw)
    raw["device_traces"] = [trace[len(trace) // 2 :] for trace in raw["device_traces"]]


HIDING: dict[str, Callable[[Raw], None]] = {
    "tags": without_tags,
    "notes": without_notes,
    "python": with_python_stacks,
    "late": without_beginning,
}


def blocks(raw: Raw) -> Iterator[Raw]:
    for segment in raw["segments"]:
        yield from segment["blocks"]


def python_part(frames: list[Raw]) -> list[Raw]:
    """Return the Python frames of the autograd engine's thread if it is on the stack, else of the main thread."""
    engine = (k for k, frame in enumerate(frames) if frame["name"].startswith("autograd::engine"))
    return [frame for frame in frames[: next(engine, len(frames))] if frame["filename"]]


def scores(path: Path, hide: Callable[[Raw], None]) -> tuple[Column, Column]:
    """Return the bytes by (recorded category, guessed category): of all blocks, and of those live at the peak."""
    with path.open("rb") as stream:
        raw = unpickle.load(stream)
    truth = tags_of(replays(path))
    hide(raw)
    total, at_peak = (np.zeros((len(CATEGORIES), len(CATEGORIES)), np.int64) for _ in range(2))
    with tempfile.TemporaryDirectory() as folder:
        hidden = Path(folder, "rank0_memory_snapshot.pickle")
        hidden.write_bytes(pickle.dumps(raw, protocol=4))
        for replay in replays(hidden):
            lives, guess = replay.lifetimes, categorise(replay).category
            noted = np.array([truth.get(key, UNTAGGED) for key in keys_of(replay)], np.int64)
            alive = np.isin(np.arange(len(noted)), lives.alive(replay.peak[1]))
            for table, rows in ((total, noted != UNTAGGED), (at_peak, alive & (noted != UNTAGGED))):
                np.add.at(table, (noted[rows], guess[rows]), lives.size[rows])
    return total, at_peak


def replays(path: Path) -> list[Replay]:
    snapshot = Snapshot(store.load([path], READER))
    return [Replay(snapshot.device(number)) for number in snapshot.devices]


def tags_of(found: list[Replay]) -> dict[tuple[int, int, int], int]:
    """Return the recorded category of each block."""
    return {
        key: int(category)
        for replay in found
        for key, category in zip(keys_of(replay), replay.lifetimes.category, strict=True)
    }


def keys_of(replay: Replay) -> Iterator[tuple[int, int, int]]:
    """Yield (device, address, number of entries from the block's end to the end of the trace) for each block.

    These keys stay the same if the beginning of the trace is cut off.
    """
    lives: Lifetimes = replay.lifetimes
    for address, died in zip(lives.addr.tolist(), lives.died.tolist(), strict=True):
        yield replay.trace.number, address, len(replay.trace) - died


def main() -> None:
    files = {path: [a.path for a in newest_step(discover(Path(path)).of(Kind.SNAPSHOT))] for path in sys.argv[1:]}
    for way, hide in HIDING.items():
        print(f"\n{way:<28}{'files':>6}{'MB':>10}{'right':>9}{'labelled':>9}{'at peak: right':>17}{'labelled':>9}")
        everything = []
        for path, snapshots in files.items():
            parts = [scores(one, hide) for one in snapshots]
            total, at_peak = (sum(part[k] for part in parts) for k in range(2))
            everything.append(total)
            print(f"  {Path(path).name:<26}{len(parts):>6}{total.sum() / 1e6:10.1f}{rates(total)}{rates(at_peak, 17)}")
        by_category(sum(everything))


def rates(found: Column, width: int = 9) -> str:
    whole = found.sum()
    return f"{share(found.trace(), whole):>{width}}{share(whole - found[:, Category.UNKNOWN].sum(), whole):>9}"


def by_category(found: Column) -> None:
    """Print, for each category, the share of its bytes that was recognised, and the share of the guesses that was
    right.
    """
    print(f"  {'noted':<22}{'MB':>12}{'right':>9}{'labelled':>9}{'precise':>9}   most often taken for")
    for kind, name in enumerate(CATEGORIES):
        row, total = found[kind], found[kind].sum()
        if not total and not found[:, kind].any():
            continue
        wrong = np.where(np.arange(len(row)) == kind, 0, row)
        mistaken = CATEGORIES[wrong.argmax()] if wrong.any() else ""
        parts = [row[kind], total - row[Category.UNKNOWN]]
        numbers = "".join(f"{share(part, total):>9}" for part in parts) + f"{share(row[kind], found[:, kind].sum()):>9}"
        print(f"  {name:<22}{total / 1e6:12.1f}{numbers}   {mistaken}")
    print(f"  {'all':<22}{found.sum() / 1e6:12.1f}{rates(found)}")


def share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"


if __name__ == "__main__":
    main()
