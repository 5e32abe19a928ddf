"""Whole screens of recorded incidents against stored ones: WORKBENCH_UPDATE_SCREENS=1 stores them anew."""

import os
from pathlib import Path

import pytest

from analyzers.run import discover
from analyzers.store import Options
from workbench.ask import room_for
from workbench.tui.app import WorkbenchApp
from workbench.tui.case import Comparison, RunCase
from workbench.tui.watch import WatchApp

SCREENS = Path(__file__).parent / "screens"
UPDATE = "WORKBENCH_UPDATE_SCREENS"
SIZES = [(80, 24), (200, 50)]
PATIENCE = 60
"""Quarters of a second."""
VIEWS = {
    "home": ("oom_2ranks", []),
    "memory": ("oom_2ranks", ["2"]),
    "blocks": ("oom_2ranks", ["2", "v", "v"]),
    "hang": ("stuck_4ranks", ["3"]),
    "stacks": ("stuck_4ranks", ["3", "v"]),
    "trace": ("straggler_data_2ranks", ["4"]),
    "events": ("straggler_data_2ranks", ["4", "v"]),
    "steps": ("straggler_4ranks", ["5"]),
}


@pytest.fixture
def elsewhere(monkeypatch, fixtures):
    """Paths on the screen are those of a user who stands in the folder."""
    monkeypatch.chdir(fixtures)
    monkeypatch.setenv("TEXTUAL_ANIMATIONS", "none")


def shown(app) -> str:
    width, height = app.size
    lines = (strip.text[:width].rstrip() for strip in app.screen._compositor.render_strips()[:height])
    return "\n".join(lines) + "\n"


async def settled(app, pilot) -> None:
    """Everything that was asked for is there, also what is asked for once the cursor rests."""
    for _ in range(3):
        await app.workers.wait_for_complete()
        await pilot.pause(0.12)


async def matches(name: str, size: tuple[int, int], app, pilot) -> None:
    """The screen becomes the stored one; on a busy machine what was asked for may come late."""
    stored = SCREENS / f"{name}_{size[0]}x{size[1]}.txt"
    if os.environ.get(UPDATE):
        stored.parent.mkdir(exist_ok=True)
        stored.write_text(shown(app))
    for _ in range(PATIENCE):
        if shown(app) == stored.read_text():
            return
        await pilot.pause(0.25)
    assert shown(app) == stored.read_text(), f"if the new screen is right: {UPDATE}=1 pytest {Path(__file__).name}"


def app_on(name: str) -> WorkbenchApp:
    run = discover(Path(name))
    return WorkbenchApp(RunCase(run, room_for(run), Options()))


@pytest.mark.parametrize("size", SIZES)
async def test_views(elsewhere, size):
    """One app an incident; the views one after the other."""
    apps: dict[str, list[str]] = {}
    for view, (incident, _) in VIEWS.items():
        apps.setdefault(incident, []).append(view)
    for incident, views in apps.items():
        app = app_on(incident)
        async with app.run_test(size=size) as pilot:
            await settled(app, pilot)
            for view in views:
                await pilot.press("1", *VIEWS[view][1])
                await settled(app, pilot)
                await matches(view, size, app, pilot)
                for _ in VIEWS[view][1][1:]:
                    await pilot.press("V")


@pytest.mark.parametrize("size", SIZES)
async def test_comparison(elsewhere, size):
    app = WorkbenchApp(
        Comparison(*(discover(Path(name)) for name in ("healthy_2ranks", "straggler_2ranks")), Options())
    )
    async with app.run_test(size=size) as pilot:
        await settled(app, pilot)
        await matches("compare", size, app, pilot)


@pytest.mark.parametrize("size", SIZES)
async def test_a_watched_job_that_has_ended(elsewhere, size):
    app = WatchApp(Path("stuck_2ranks"))
    async with app.run_test(size=size) as pilot:
        while app.scene is None or app.scene.report is None or app.scene.asking:
            await pilot.pause(0.1)
        await pilot.pause(0.6)
        await matches("watch", size, app, pilot)
