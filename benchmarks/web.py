"""Measure how long the dashboard takes in a headless Chromium: first page, zoom, another entry; timeline of a trace.

    python benchmarks/web.py [--entries 1000000] [--events 1600000] [--times 5] [--only trace] [SNAPSHOT]

Wall time from the request, or from the gesture, until the new picture is in the page; the cache is warm, as it is after
the first opening. Prints the median and the worst of several times, and what the page asked of the network. Of the
timeline it prints how many frames a second are drawn while all events are visible and move, and while the view zooms
from analyzers.memory import MemoryData
from analyzers.traces import TraceData
from analyzers.traces import TraceData
from analyzers.memory import MemoryData
from all to a hundred-thousandth and back; Chromium has no GPU, so that its software renderer draws them.
"""

import argparse
import logging
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright
from werkzeug.serving import make_server

from analyzers.memory import MemoryData
from analyzers.rooms import room_for
from analyzers.run import discover
from analyzers.store import Options
from analyzers.traces import TraceData
from benchmarks import traced_job
from benchmarks.snapshots import write
from workbench.web.app import make_app
from workbench.web.served_run import served_run

TIMELINE = "#timeline .scatterlayer .trace"
SETTLED_MS = 1500
"""Milliseconds until Dash reacts to actions on a chart that is drawn already; an earlier zoom is lost."""
KEEP = "chart => { window.before = document.querySelector(`#${chart} .js-plotly-plot`).data; }"
ANSWERED = """chart => {
    const graph = document.querySelector(`#${chart} .js-plotly-plot`);
    return graph.data !== window.before && !graph.classList.contains('dash-graph--pending');
}"""
FRAMES = """async ([from, to, seconds]) => {
    const { timeline } = document.querySelector('[data-timeline]'), whole = timeline.whole.high - timeline.whole.low;
    const next = () => new Promise(requestAnimationFrame), began = await next(), gaps = [];
    for (let now = began, before = began; now - began < 1000 * seconds; before = now) {
        const part = (now - began) / (1000 * seconds), inwards = 1 - Math.abs(1 - 2 * part);
        const length = whole * from * (to / from) ** inwards;
        const low = timeline.whole.low + (whole - length) * (0.3 + 0.4 * part);
        timeline.view = { low, high: low + length };
        timeline.paint();
        now = await next();
        gaps.push(now - before);
    }
    timeline.showAll();
    return gaps;
}"""
"""Draws the timeline as often as it can; returns the milliseconds between frames."""
LEAST_FRAMES = 30
ZOOMED = (0.2, 0.7)
"""The mouse is dragged between these parts of the chart's width."""


@contextmanager
def served(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the address of a dashboard of a snapshot or trace, and how many entries (or ns) the file has."""
    run = discover(path)
    view = served_run(run, room_for(run), Options())
    server = make_server("127.0.0.1", 0, make_app(view).server, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    memory, trace = view.data(MemoryData), view.data(TraceData)
    ends = [device.entries for device in memory.devices] if memory else [rank.span_ns for rank in trace.ranks]
    yield f"http://127.0.0.1:{server.port}", max(ends)
    server.shutdown()


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def open_page(page: Page, address: str, drawn: str) -> float:
    def go() -> None:
        page.goto(address)
        page.wait_for_selector(drawn)

    return timed(go)


def answered(page: Page, chart: str, gesture: Callable[[], object]) -> float:
    """Return the seconds from the end of a gesture until the chart shows the server's answer."""
    page.evaluate(KEEP, chart)

    def go() -> None:
        gesture()
        page.wait_for_function(ANSWERED, arg=chart, polling=5)

    took = timed(go)
    page.wait_for_timeout(SETTLED_MS)
    return took


def zooms(page: Page, chart: str, times: int) -> tuple[list[float], list[float]]:
    """Return the seconds of each zoom into a chart by the mouse, and of each return to the whole of it by a key."""
    page.wait_for_timeout(SETTLED_MS)
    page.locator(f"#{chart}").scroll_into_view_if_needed()
    box = page.locator(f"#{chart} .nsewdrag").first.bounding_box()
    assert box is not None
    inwards, back = [], []
    for _ in range(times):
        left, right = (box["x"] + part * box["width"] for part in ZOOMED)
        page.mouse.move(left, box["y"] + 20)
        page.mouse.down()
        page.mouse.move(right, box["y"] + 20, steps=3)
        inwards.append(answered(page, chart, page.mouse.up))
        page.focus(f"figure:has(#{chart})")
        back.append(answered(page, chart, lambda: page.keyboard.press("0")))
    return inwards, back


def look(page: Page, address: str, entry: int) -> float:
    """Return the seconds until the memory page at trace entry `entry` is drawn."""

    def go() -> None:
        page.goto(f"{address}/memory?entry={entry}")
        page.wait_for_selector("#tree .icicle")

    return timed(go)


def print_times(what: str, seconds: list[float], limit: float) -> None:
    median, worst = statistics.median(seconds), max(seconds)
    print(f"{what:28} median {1e3 * median:7.0f} ms   worst {1e3 * worst:7.0f} ms   (aim {1e3 * limit:.0f} ms)")


@contextmanager
def watched(address: str) -> Iterator[Page]:
    """Yield a browser page; at the end, print how many requests it made and how many errors it logged."""
    asked: list[str] = []
    errors: list[str] = []
    with sync_playwright() as p:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = shutil.which("chromium-headless-shell") or shutil.which("chromium")
        page = p.chromium.launch(executable_path=browser, args=options).new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        yield page
    outside = [url for url in asked if not url.startswith((address, "data:", "blob:"))]
    print(f"{len(asked)} requests, {len(outside)} outside; {len(errors)} console errors")


def of_snapshot(path: Path, times: int) -> None:
    with served(path) as (address, entries), watched(address) as page:
        print_times("first page (overview)", [open_page(page, address, "#verdict") for _ in range(times)], 2.0)
        print_times("memory page", [open_page(page, f"{address}/memory", TIMELINE) for _ in range(times)], 2.0)
        inwards, back = zooms(page, "timeline", times)
        print_times(f"zoom on {entries:,} entries", inwards, 0.3)
        print_times("back to all of them", back, 0.3)
        print_times(
            "another instant", [look(page, address, entries * i // (times + 1)) for i in range(1, times + 1)], 2.0
        )


def of_trace(path: Path, times: int) -> None:
    with served(path) as (address, _), watched(address) as page:
        print_times("first page (overview)", [open_page(page, address, "#verdict") for _ in range(times)], 2.0)
        print_times("trace page", [open_page(page, f"{address}/trace", "[data-drawn]") for _ in range(times)], 2.0)
        page.wait_for_timeout(SETTLED_MS)
        print(page.locator(".timeline .note").inner_text())
        print_times("zoom on its events", [wheel(page) for _ in range(times)], 0.25)
        print_times("tables of the new range", [tables(page, i) for i in range(times)], 0.25)
        print_frame_rate("all events visible, moving", page.evaluate(FRAMES, [1, 0.7, 6]))
        print_frame_rate("zoom to 1/100,000 and back", page.evaluate(FRAMES, [1, 1e-5, 6]))


def wheel(page: Page) -> float:
    """Return the seconds from a turn of the mouse wheel over the timeline until the new picture is drawn."""
    box = page.locator("[data-timeline] canvas[tabindex]").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    painted = """() => { const { timeline } = document.querySelector('[data-timeline]');
        window.painted = new Promise((done) => { timeline.overlay.addEventListener('wheel', () => {
            const began = performance.now();
            requestAnimationFrame(() => requestAnimationFrame(() => done((performance.now() - began) / 1000)));
        }, { once: true }); }); }"""
    page.evaluate(painted)
    page.mouse.wheel(0, -100)
    seconds = float(page.evaluate("window.painted"))
    page.wait_for_timeout(SETTLED_MS)
    return seconds


def tables(page: Page, number: int) -> float:
    """Return the seconds from a change of the range until the tables below the timeline are those of the new range."""

    def go() -> None:
        with page.expect_response(lambda answer: "_dash-update-component" in answer.url):
            page.evaluate(
                "part => { const { timeline } = document.querySelector('[data-timeline]'), { high } = timeline.whole;"
                " timeline.show(high * part, high * (part + 0.01)); }",
                0.1 + 0.05 * number,
            )

    took = timed(go)
    page.wait_for_timeout(SETTLED_MS)
    return took


def print_frame_rate(what: str, gaps: list[float]) -> None:
    rate, worst = 1e3 * len(gaps) / sum(gaps), sorted(gaps)[int(0.99 * len(gaps))]
    print(f"{what:28} {rate:5.1f} frames/s   worst 1 % of gaps {worst:4.0f} ms   (aim 60, least {LEAST_FRAMES})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snapshot", type=Path, nargs="?")
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--events", type=int, default=1_600_000, help="entries of the trace; about 5 of 8 are drawn")
    parser.add_argument("--only", choices=("snapshot", "trace"))
    parser.add_argument("--times", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = asked.snapshot or Path(folder) / "rank0_memory_snapshot.pickle"
        if asked.snapshot is None and asked.only != "trace":
            write(path, asked.entries)
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        if asked.only != "trace":
            of_snapshot(path, asked.times)
        traced = Path(folder) / "rank0_trace.json.gz"
        if asked.only != "snapshot":
            traced_job.large(traced, asked.events)
            of_trace(traced, asked.times)


if __name__ == "__main__":
    main()
