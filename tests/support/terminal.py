"""Use the terminal app in a test: open it on a run, wait for it, and read its screen."""

import time
from pathlib import Path

from analyzers.rooms import room_for
from analyzers.run import discover
from analyzers.store import Options
from workbench.tui.app import WorkbenchApp
from workbench.tui.subject import subject_of

PATIENCE_S = 120.0
"""Seconds that a wait may take: a busy machine is slow, and a wait that succeeds costs nothing."""


def app_on(run, room=None):
    """Return an app for a run, or for the run in a folder."""
    run = discover(run) if isinstance(run, Path) else run
    return WorkbenchApp(subject_of(run, room or room_for(run), Options()))


async def settle(app, pilot, rest=None):
    """Wait until all computations have finished and are drawn, and `rest` seconds for those that wait for a still
    cursor.

    Textual's own wait fails if a newer computation replaces the awaited one.
    """
    for _ in range(3):
        await until(pilot, lambda: all(worker.is_finished for worker in app.workers), every=0.01)
        await pilot.pause(rest)


async def until(pilot, happened, every=0.25):
    """Wait until `happened()` is true; it is called every `every` seconds."""
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, "waited in vain"
        await pilot.pause(every)


async def press(app, pilot, *keys):
    """Press keys ("" presses none), and wait after each until all computations have finished."""
    for key in keys:
        if key:
            await pilot.press(key)
        await settle(app, pilot)
    return shown(app)


def shown(app):
    """Return the text on the screen, line by line."""
    width, height = app.size
    return "\n".join(strip.text[:width].rstrip() for strip in app.screen._compositor.render_strips()[:height])
