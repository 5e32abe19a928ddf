"""Whole screens of recorded runs, compared with stored ones; WORKBENCH_UPDATE_SCREENS=1 stores them again."""

import os
from pathlib import Path

import pytest
from meshes import meshes

from analyzers.run import discover
from analyzers.store import Options
from terminal import app_on, settle, shown, until
from workbench.tui.app import WorkbenchApp
from workbench.tui.subject import comparison
from workbench.watch.app import WatchApp

SCREENS = Path(__file__).parent / "screens"
UPDATE = "WORKBENCH_UPDATE_SCREENS"
SIZES = [(80, 24), (200, 50)]
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
    """Fixture: make paths on the screen look as if the user were in the fixtures' folder."""
    monkeypatch.chdir(fixtures)
    monkeypatch.setenv("TEXTUAL_ANIMATIONS", "none")


async def matches(name: str, size: tuple[int, int], app, pilot) -> None:
    """Wait until the screen equals the stored one; on a busy machine this may take long."""
    stored = SCREENS / f"{name}_{size[0]}x{size[1]}.txt"
    if os.environ.get(UPDATE):
        stored.parent.mkdir(exist_ok=True)
        stored.write_text(shown(app) + "\n")
    try:
        await until(pilot, lambda: shown(app) + "\n" == stored.read_text())
    except AssertionError:
        told = f"if the new screen is right: {UPDATE}=1 pytest {Path(__file__).name}"
        assert shown(app) + "\n" == stored.read_text(), told


@pytest.mark.parametrize("size", SIZES)
async def test_views(elsewhere, size):
    """One app shows all views of an incident, one after the other."""
    apps: dict[str, list[str]] = {}
    for view, (incident, _) in VIEWS.items():
        apps.setdefault(incident, []).append(view)
    for incident, views in apps.items():
        app = app_on(Path(incident))
        async with app.run_test(size=size) as pilot:
            await settle(app, pilot, rest=0.12)
            for view in views:
                await pilot.press("1", *VIEWS[view][1])
                await settle(app, pilot, rest=0.12)
                await matches(view, size, app, pilot)
                for _ in VIEWS[view][1][1:]:
                    await pilot.press("V")


@pytest.mark.parametrize("size", SIZES)
async def test_comparison(elsewhere, size):
    app = WorkbenchApp(
        comparison(*(discover(Path(name)) for name in ("healthy_2ranks", "straggler_2ranks")), Options())
    )
    async with app.run_test(size=size) as pilot:
        await settle(app, pilot, rest=0.12)
        await matches("compare", size, app, pilot)


@pytest.mark.parametrize("size", SIZES)
async def test_several_meshes(tmp_path, monkeypatch, size):
    meshes(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TEXTUAL_ANIMATIONS", "none")
    app = app_on(Path("meshes"))
    async with app.run_test(size=size) as pilot:
        await settle(app, pilot, rest=0.12)
        await matches("parity", size, app, pilot)
        await pilot.press("right", "right_square_bracket", "v")
        await settle(app, pilot, rest=0.12)
        await matches("parity_differences", size, app, pilot)


@pytest.mark.parametrize("size", SIZES)
async def test_a_watched_job_that_has_ended(elsewhere, size):
    app = WatchApp(Path("stuck_2ranks"))
    async with app.run_test(size=size) as pilot:
        while app.job is None or app.job.report is None or app.job.analysing:
            await pilot.pause(0.1)
        await until(pilot, lambda: "no data to draw" not in shown(app))
        text = ""
        while text != shown(app):  # a busy machine arranges the screen of the report late
            text = shown(app)
            await pilot.pause(0.6)
        await matches("watch", size, app, pilot)
