"""Draws the pictures of the README and the tutorials anew from recorded incidents: `python docs/pictures.py`.

Those of the README are drawn for light and for dark pages.
"""

import asyncio
import re
import shutil
import threading
from pathlib import Path
from typing import Literal

from playwright.sync_api import sync_playwright
from textual.app import App
from textual.pilot import Pilot
from werkzeug.serving import make_server

from analyzers import compare
from analyzers.rooms import room_for
from analyzers.run import discover
from analyzers.store import Options
from workbench.tui.app import WorkbenchApp
from workbench.tui.subject import subject_of
from workbench.watch.app import WatchApp
from workbench.web.app import make_app
from workbench.web.served_run import ServedRun, served_run

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
FIXTURES = (ROOT / "tests" / "fixtures").relative_to(Path.cwd())
OOM, STUCK, SLOW = (FIXTURES / name for name in ("oom_2ranks", "stuck_4ranks", "straggler_data_4ranks"))
HEALTHY, GARBAGE = (FIXTURES / name for name in ("healthy_4ranks", "straggler_gc_4ranks"))
FONT = re.compile(r"@font-face \{.*?\}", re.DOTALL)
"""Textual's pictures load a font from the network; without this rule they use a system font."""


BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium")


async def terminal(app: App[object], keys: str, name: str, title: str, theme: str = "textual-dark") -> None:
    async with app.run_test(size=(118, 38)) as pilot:
        app.theme = theme
        for key in ("", *keys):
            await settled(app, pilot)
            if key:
                await pilot.press(key)
        await settled(app, pilot)
        (PICTURES / f"{name}.svg").write_text(FONT.sub("", app.export_screenshot(title=title)))


async def settled(app: App[object], pilot: Pilot[object]) -> None:
    """Wait until the app has computed and drawn everything."""
    await app.workers.wait_for_complete()
    await pilot.pause(1.5)
    await app.workers.wait_for_complete()
    await pilot.pause(0.5)


def inspecting(folder: Path) -> WorkbenchApp:
    run = discover(folder)
    return WorkbenchApp(subject_of(run, room_for(run), Options()))


def page(view: ServedRun, path: str, name: str, scheme: Literal["light", "dark"] = "light") -> None:
    server = make_server("127.0.0.1", 0, make_app(view).server, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        shown = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
        shown.goto(f"http://127.0.0.1:{server.port}{path}")
        shown.wait_for_load_state("networkidle")
        shown.wait_for_timeout(4000)
        shown.screenshot(path=PICTURES / f"{name}.png")
        browser.close()
    server.shutdown()


def of_run(folder: Path) -> ServedRun:
    run = discover(folder)
    return served_run(run, room_for(run), Options())


def of_two(a: Path, b: Path) -> ServedRun:
    runs = discover(a), discover(b)
    report = compare.analyze(*runs, Options())
    return ServedRun(runs[0], Options(), report, runs[1])


if __name__ == "__main__":
    for folder, key, name in ((OOM, "2", "memory"), (STUCK, "3", "hang"), (SLOW, "5", "steps")):
        asyncio.run(terminal(inspecting(folder), key, name, "workbench inspect outputs/"))
    asyncio.run(terminal(WatchApp(STUCK), "", "watch", "workbench watch outputs/"))
    for scheme in ("light", "dark"):
        asyncio.run(terminal(inspecting(OOM), "1", f"home-{scheme}", "workbench inspect outputs/", f"textual-{scheme}"))
        page(of_run(OOM), "/", f"web-{scheme}", scheme)
    page(of_run(OOM), "/memory", "web")
    page(of_run(SLOW), "/trace", "web-trace")
    page(of_two(HEALTHY, GARBAGE), "/compare", "web-compare")
