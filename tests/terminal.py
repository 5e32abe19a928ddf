"""The terminal app as a test drives it: opened on a run, waited for, read from its screen."""

from pathlib import Path

from analyzers.run import discover
from analyzers.store import Options
from workbench.ask import room_for
from workbench.tui.app import WorkbenchApp
from workbench.tui.case import RunCase

PATIENCE = 240
"""Quarters of a second: a busy machine is slow, and a wait that succeeds costs nothing."""


def app_on(run, room=None):
    """An app of a run or of a run's folder."""
    run = discover(run) if isinstance(run, Path) else run
    return WorkbenchApp(RunCase(run, room or room_for(run), Options()))


async def settle(app, pilot, rest=None):
    """Answers are there and drawn, also those that they led to; `rest` seconds for what waits for a resting cursor."""
    for _ in range(3):
        await app.workers.wait_for_complete()
        await pilot.pause(rest)


async def until(pilot, happened):
    """Wait until `happened()`."""
    for _ in range(PATIENCE):
        if happened():
            return
        await pilot.pause(0.25)
    raise AssertionError("waited in vain")


async def press(app, pilot, *keys):
    """Press keys, "" for none; after each everything that was asked for is there."""
    for key in keys:
        if key:
            await pilot.press(key)
        await settle(app, pilot)
    return shown(app)


def shown(app):
    """What the screen shows, line by line."""
    width, height = app.size
    return "\n".join(strip.text[:width].rstrip() for strip in app.screen._compositor.render_strips()[:height])
