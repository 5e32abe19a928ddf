"""Use the terminal app by mouse, in every theme and next to a browser, and quit it while it is still reading."""

import os
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from textual.widgets import TabbedContent

from terminal import app_on, press, settle, shown
from workbench.colours import DARK, LIGHT, SERVES
from workbench.tui.panes.memory import MemoryViews
from workbench.tui.widgets.common import KeyLine
from workbench.tui.widgets.gantt import Gantt
from workbench.tui.widgets.memory_timeline import MemoryTimeline
from workbench.tui.widgets.view_switcher import ViewStrip

ROOT = Path(__file__).parents[3]


async def test_a_click_does_what_a_key_does(fixtures):
    """Clicks on a tab, on the chart and on the line of keys have the same effect as keys."""
    app = app_on(fixtures / "oom_4ranks")
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot)
        await pilot.click("#--content-tab-memory")
        await settle(app, pilot)
        assert app.query_one(TabbedContent).active == "memory"
        area = app.query_one(MemoryTimeline)
        await pilot.click(MemoryTimeline, offset=(1 + area.axis_width + 10, 5))
        await settle(app, pilot)
        assert area.starts[area.cursor] <= 10 < area.starts[area.cursor + 1]
        line = str(app.query_one(KeyLine).render())
        await pilot.click(KeyLine, offset=(line.index("Next view"), 0))
        await settle(app, pilot)
        assert app.query_one(MemoryViews).view == "tree"


async def test_the_wheel_scrolls_what_is_under_it(fixtures):
    app = app_on(fixtures / "straggler_data_4ranks")
    async with app.run_test(size=(100, 24)) as pilot:
        await settle(app, pilot)
        await pilot.press("4", "v")
        await settle(app, pilot)
        gantt = app.query_one(Gantt)
        assert gantt.max_scroll_y > 0
        await pilot._post_mouse_events([scroll_down()], Gantt, offset=(20, 3))
        await settle(app, pilot)
        assert gantt.scroll_y > 0


def scroll_down():
    from textual.events import MouseScrollDown

    return MouseScrollDown


@pytest.mark.parametrize("size", [(80, 24)])
async def test_every_theme_shows_the_same_text(fixtures, size):
    app = app_on(fixtures / "stuck_2ranks")
    async with app.run_test(size=size) as pilot:
        await settle(app, pilot)
        await pilot.press("3")
        await settle(app, pilot)
        first = shown(app)
        assert "✗" in first
        for name in sorted(app.available_themes):
            app.theme = name
            await pilot.pause()
            assert shown(app) == first, name


async def test_w_serves_the_same_run_until_one_leaves(fixtures, monkeypatch):
    monkeypatch.setenv("BROWSER", "true")
    app = app_on(fixtures / "oom_2ranks")
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(app, pilot)
        await pilot.press("w")
        await settle(app, pilot)
        told = [note.message for note in app._notifications]
        address = re.search(r"http://\S+", " ".join(told))
        assert address, told
        assert status_of(address[0]) == 200
        process = app._dashboard._process
        await pilot.press("q")
    assert process.poll() is not None


def status_of(address):
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())  # the token comes back as a cookie
    with browser.open(address, timeout=120) as page:
        return page.status


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Fixture: a snapshot that takes seconds to read."""
    path = tmp_path_factory.mktemp("large") / "rank0_memory_snapshot.pickle"
    subprocess.run([sys.executable, "benchmarks/snapshots.py", str(path), "200000"], cwd=ROOT, check=True)
    return path


@pytest.mark.slow
def test_q_gives_up_what_is_still_being_read(large, tmp_path):
    """In a real terminal, the app says what it reads; `q` ends the app and the processes that read."""
    session = f"workbench-{os.getpid()}"
    tmux = ["tmux", "-L", session]
    command = shlex.join([sys.executable, "-m", "workbench", "inspect", str(large)])
    environment = os.environ | {"PYTHONPATH": str(ROOT), "WORKBENCH_CACHE": str(tmp_path), "TERM": "xterm-256color"}
    subprocess.run([*tmux, "-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", command],
                   env=environment, check=True)  # fmt: skip
    try:
        seen = until(lambda: "q: quit" in screen(tmux), 120)
        assert seen
        subprocess.run([*tmux, "send-keys", "q"], check=True)
        assert until(lambda: not alive(large), 120)
    finally:
        subprocess.run([*tmux, "kill-server"], check=False, capture_output=True)


def screen(tmux):
    return subprocess.run([*tmux, "capture-pane", "-p"], capture_output=True, text=True, check=False).stdout


def alive(path):
    """Return whether any Python process has the file on its command line."""
    found = subprocess.run(["pgrep", "-f", rf"^\S*python\S* .*{path}"], capture_output=True, text=True, check=False)
    return bool(found.stdout.strip())


def until(happened, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if happened():
            return True
        time.sleep(0.1)
    return False


async def test_a_click_on_the_name_of_a_view_shows_it(fixtures):
    app = app_on(fixtures / "oom_2ranks")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(app, pilot)
        await press(app, pilot, "2")
        strip = app.query_one(MemoryViews).query_one(ViewStrip)
        line = shown(app).splitlines()[strip.region.y]
        assert "stacks  tree  blocks  list  history  changes" in line
        await pilot.click(strip, offset=(line.index("blocks") + 1 - strip.region.x, 0))
        await settle(app, pilot)
        assert "segments and blocks" in shown(app)
        assert "% used" in shown(app)


async def test_charts_have_the_shades_of_a_light_theme_and_readable_text_on_them(fixtures):
    app = app_on(fixtures / "straggler_2ranks")
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(app, pilot)
        await pilot.press("5")
        await settle(app, pilot)
        colours = {}
        for name in ("textual-dark", "textual-light", "textual-dark"):
            app.theme = name
            await pilot.pause()
            colours[name] = drawn_colours(app)
    dark, light = colours["textual-dark"], colours["textual-light"]
    assert DARK.hues["blue"] in dark - light
    assert LIGHT.hues["blue"] in light - dark
    assert not light & {DARK.hues[hue] for hue in SERVES} - set(LIGHT.hues.values())


def drawn_colours(app):
    """Return the colours of text and background that are on the screen."""
    styles = [segment.style for line in app.screen._compositor.render_strips() for segment in line if segment.style]
    parts = [part for style in styles for part in (style.color, style.bgcolor) if part and part.triplet]
    return {part.triplet.hex for part in parts}
