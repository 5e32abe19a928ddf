"""Measure the speed of the terminal app: the first paint, the longest gap while it loads, each key, and each view.

    python benchmarks/faces.py [--entries 1000000] [--megabytes 500]

A gap is a time in which the event loop did not run. The time of a key ends when the screen is next painted. Paints are
measured in processor time, because wall time depends on what else runs. Exits with 1 if a target is missed.
"""

import argparse
import asyncio
import contextlib
import inspect
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ["TEXTUAL_ANIMATIONS"] = "none"

from analyzers.rooms import room_for
from analyzers.run import discover
from analyzers.store import Options
from benchmarks.snapshots import write
from workbench.tui.app import WorkbenchApp
from workbench.tui.subject import Subject, subject_of
from workbench.tui.terminal_app import leave_searches_to_idle_times
from workbench.tui.widgets.stacked_chart import StackedChart

SIZE = (120, 40)
FIRST_PAINT_S, GAP_S, KEY_S, VIEW_S = 0.2, 0.1, 0.05, 0.1
TICK_S = 0.002
TIMES = 3
PAINTS = ("first paint from the cache (processor)", "answer and picture from the cache (processor)")
PRESSED = ("left", "right", "h", "l", "plus", "minus", "0", "v", "v", "v", "V", "V", "V", "b", "f", "f", "1", "2", "d")
ENTRIES_A_MEGABYTE = 1_000_000 / 180


class Watch:
    """The longest gap of the event loop since the last `reset`, and the loop's own processor time in it."""

    def __init__(self) -> None:
        self.longest = self.worked = 0.0

    def reset(self) -> None:
        self.longest = self.worked = 0.0

    async def run(self) -> None:
        last, spent = time.perf_counter(), time.thread_time()
        while True:
            await asyncio.sleep(TICK_S)
            now, work = time.perf_counter(), time.thread_time()
            if now - last - TICK_S > self.longest:
                self.longest, self.worked = now - last - TICK_S, work - spent
            last, spent = now, work


class Painted(WorkbenchApp):
    """The app, with an event that is set when it has painted."""

    CSS_PATH = Path(inspect.getfile(WorkbenchApp)).with_name("workbench.tcss")

    def __init__(self, case: Subject) -> None:
        super().__init__(case)
        self.painted = asyncio.Event()

    def _display(self, *what: Any) -> None:
        super()._display(*what)
        self.painted.set()


@contextlib.asynccontextmanager
async def opened(path: Path) -> AsyncIterator[tuple[Painted, Any, Watch]]:
    run = discover(path)
    app, watch = Painted(subject_of(run, room_for(run), Options())), Watch()
    task = asyncio.create_task(watch.run())
    async with app.run_test(size=SIZE) as pilot:
        yield app, pilot, watch
    task.cancel()


async def until(happened: Any) -> None:
    while not happened():  # noqa: ASYNC110  # nobody tells
        await asyncio.sleep(TICK_S)


async def loading(path: Path) -> tuple[float, Watch]:
    """Return the seconds until the chart of a file that is not cached is drawn, and the longest gap until then."""
    began = time.perf_counter()
    async with opened(path) as (app, _, watch):
        await until(lambda: any(len(area.instants) for area in app.query(StackedChart)))
        return time.perf_counter() - began, watch


async def first_paint(path: Path) -> tuple[float, float]:
    """Return the processor seconds from the start of the app until its first paint, and until its chart is drawn."""
    began = time.process_time()
    async with opened(path) as (app, _, _):
        painted_s = time.process_time() - began
        await until(lambda: any(len(area.instants) for area in app.query(StackedChart)))
        return painted_s, time.process_time() - began


async def keys(path: Path) -> dict[str, tuple[float, float, float]]:
    """Return {key: (seconds until the next paint, longest gap after it, how much of the gap the loop worked)}.

    The first is the best of several presses, the gap the worst.
    """
    found: dict[str, tuple[float, float, float]] = {}
    async with opened(path) as (app, pilot, watch):
        await until(lambda: any(len(area.instants) for area in app.query(StackedChart)))
        await pilot.pause(0.5)
        for key in PRESSED * TIMES:
            watch.reset()
            answered = await painted(app, key)
            await until(lambda: not any(worker.is_running for worker in app.workers))
            await pilot.pause(0.3)
            before = found.get(key, (answered, 0.0, 0.0))
            gap = max(before[1:], (watch.longest, watch.worked))
            found[key] = min(before[0], answered), *gap
    return found


async def painted(app: Painted, key: str) -> float:
    """Press a key, and return the seconds until the next paint; 0 if nothing needs painting."""
    app.painted.clear()
    began = time.perf_counter()
    app.simulate_key(key)
    try:
        await asyncio.wait_for(app.painted.wait(), 1)
    except TimeoutError:
        return 0.0
    return time.perf_counter() - began


def views_of(path: Path) -> dict[str, float]:
    """Return the processor seconds of each view of a snapshot that the faces ask for; the slower of two calls."""
    from analyzers.memory import block_map, views
    from analyzers.memory.grouping import GROUPINGS
    from analyzers.run import discover

    [artefact] = discover(path).artefacts
    last = len(views.timeline(artefact, buckets=1 << 30))
    segments, state = views.segments(artefact, last // 2), views.live_blocks(artefact, last // 2)
    questions: dict[str, Callable[[], object]] = {
        "the whole timeline": lambda: views.timeline(artefact, buckets=1000),
        "a window": lambda: views.timeline(artefact, buckets=1000, window=(last // 3, last // 2)),
        "categories at an entry": lambda: views.categories(artefact, entry=last // 2),
        "stacks at an entry": lambda: views.top_stacks(artefact, entry=last // 2),
        **{f"a tree by {by}": partial(views.tree, artefact, by=by, entry=last // 2) for by in GROUPINGS},
        "blocks at an entry": lambda: views.live_blocks(artefact, last // 2),
        "segments at an entry": lambda: views.segments(artefact, last // 2),
        "free at an entry": lambda: views.free_blocks(artefact, last // 2),
        "a map of blocks": lambda: block_map(segments, state, cells=100),
        "blocks at the end": lambda: views.blocks(artefact),
        "steps": lambda: views.steps(artefact),
        "events": lambda: views.events(artefact, first=last // 2),
        "reserved ranges": lambda: views.reserved_ranges(artefact),
        "bytes by pool": lambda: views.timeline_by(artefact, by="pool", buckets=1000),
        "search in frames": lambda: views.search(artefact, "forward"),
        "search by size": lambda: views.search(artefact, ">=1MiB"),
        "settings": lambda: views.settings(artefact),
        "life of an address": lambda: views.blocks_of_address(artefact, int(state["address"][0])),
    }
    return {name: max(timed(ask), timed(ask)) for name, ask in questions.items()}


def timed(ask: Callable[[], object]) -> float:
    began = time.process_time()
    ask()
    return time.process_time() - began


def is_within(what: str, seconds: float, target: float) -> bool:
    kept = seconds < target
    print(f"{'ok  ' if kept else 'MISS'}  {what:<56} {seconds * 1e3:8.1f} ms   target {target * 1e3:.0f} ms")
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--megabytes", type=int, default=500)
    asked = parser.parse_args()
    leave_searches_to_idle_times()  # as `open_app` does
    with tempfile.TemporaryDirectory() as folder:
        os.environ["WORKBENCH_CACHE"] = folder
        large, many = Path(folder, "large.pickle"), Path(folder, "many.pickle")
        write(large, int(asked.megabytes * ENTRIES_A_MEGABYTE))
        write(many, asked.entries)
        print(f"loading {large.stat().st_size >> 20} MiB, then {asked.entries} entries")
        took, gap = asyncio.run(loading(large))
        print(f"      read and drawn in {took:.1f} s")
        about = f"longest gap while it loads (event loop busy: {gap.worked * 1e3:.0f} ms)"
        kept = [is_within(about, gap.longest, GAP_S)]
        asyncio.run(loading(many))
        paints = zip(*(asyncio.run(first_paint(many)) for _ in range(TIMES)), strict=True)
        kept += [is_within(what, min(found), FIRST_PAINT_S) for what, found in zip(PAINTS, paints, strict=True)]
        for key, (answered, longest, worked) in asyncio.run(keys(many)).items():
            kept.append(is_within(f"key {key}: next paint", answered, KEY_S))
            kept.append(is_within(f"key {key}: longest gap (event loop busy: {worked * 1e3:.0f} ms)", longest, KEY_S))
        kept += [is_within(f"{what} (processor)", seconds, VIEW_S) for what, seconds in views_of(many).items()]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
