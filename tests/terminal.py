"""The terminal app as a test drives it: opened on a run, waited for, read from its screen."""

import time
from pathlib import Path

from analyzers.run import discover
from analyzers.store import Options
from workbench.ask import room_for
from workbench.tui.app import WorkbenchApp
from workbench.tui.subject import subject_of

PATIENCE_S = 120.0
"""A busy machine is slow, and a wait that succeeds costs nothing."""


def app_on(run, room=None):
    """An app of a run or of a run's folder."""
    run = discover(run) if isinstance(run, Path) else run
    return WorkbenchApp(subject_of(run, room or room_for(run), Options()))


async def settle(app, pilot, rest=None):
    """Answers are there and drawn, also those that they led to; `rest` seconds for what waits for a resting cursor.

    Textual's own wait fails where a newer question takes the place of one that is waited for.
    """
    for _ in range(3):
        await until(pilot, lambda: all(worker.is_finished for worker in app.workers), every=0.01)
        await pilot.pause(rest)


async def until(pilot, happened, every=0.25):
    """Wait until `happened()`, which is looked at every so many seconds."""
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, "waited in vain"
        await pilot.pause(every)


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
