"""From a finding to its evidence with a single key, for each recorded run."""

import pytest
from textual.widgets import TabbedContent

from terminal import app_on, press, settle, shown, until
from workbench.tui.panes.home import Findings

EVIDENCE = {
    "oom_4ranks": ("memory", ["rank 3", "out of memory", "✗", "largest stacks"]),
    "leak_4ranks": ("memory", ["rank 3", "what changed", "output.activations"]),
    "stuck_4ranks": ("hang", ["✗", "stacks of all ranks", "loop_in_python"]),
    "stuck_gil_4ranks": ("hang", ["stacks of all ranks", "hold_gil"]),
    "kill_4ranks": ("hang", ["dead"]),
    "mismatch_shape_4ranks": ("hang", ["≠", "operations of the ranks side by side", "all_reduce of 0 float32"]),
    "skip_4ranks": ("hang", ["operations of the ranks side by side"]),
    "straggler_4ranks": ("steps", ["rank 3", "late by", "compute"]),
    "straggler_data_4ranks": ("steps", ["rank 3", "late by", "data_wait"]),
    "nan_4ranks": ("steps", ["rank 3", "loss", "✗ not finite"]),
}


def words(app):
    """Return the text on the screen, with single spaces instead of line breaks and gaps."""
    return " ".join(shown(app).split())


@pytest.mark.parametrize("name", EVIDENCE)
async def test_enter_leads_from_the_verdict_to_its_evidence(fixtures, name):
    room, told = EVIDENCE[name]
    app = app_on(fixtures / name)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot)
        assert "Next" in words(app)
        await pilot.press("enter")
        await until(pilot, lambda: all(piece in words(app) for piece in told))
        assert app.query_one(TabbedContent).active == room


async def test_the_ranks_and_the_files_of_the_run_are_told(fixtures):
    """On a small screen the lists of ranks and files replace the findings, and can be closed again."""
    app = app_on(fixtures / "oom_4ranks")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(app, pilot)
        await pilot.press("v")
        await settle(app, pilot)
        text = words(app)
        assert "waits for" in text
        assert text.index("154.5 MiB ✗ memory.oom") < text.index("0 5 ")
        assert app.query_one(Findings).size.height == 0
        await pilot.press("v")
        await settle(app, pilot)
        assert "flight record 0-3 4" in words(app)
        await pilot.press("v")
        await settle(app, pilot)
        assert app.query_one(Findings).size.height > 0
        assert app.query_one(Findings).has_focus


async def test_enter_on_a_rank_shows_what_names_it(fixtures):
    app = app_on(fixtures / "straggler_data_4ranks")
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot)
        await pilot.press("v")
        await settle(app, pilot)
        await pilot.press("down", "enter")
        await settle(app, pilot)
        assert app.query_one(TabbedContent).active == "trace"
        assert "arrives last" in words(app)


PICTURES = {
    "oom_4ranks": ["Allocated memory by category, rank 3", "┤", "▼ peak 154.5 MiB   ✗ allocation failed"],
    "stuck_4ranks": ["Last collectives of process group default_pg, by rank", "#89"],
    "straggler_4ranks": ["Time of each phase in the steps of rank 3", "▼ longest"],
    "nan_4ranks": ["Loss of each step", "✗ not finite"],
}


@pytest.mark.parametrize("name", PICTURES)
async def test_a_chart_of_the_evidence_stands_beside_the_verdict(fixtures, name):
    app = app_on(fixtures / name)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot)
        for piece in PICTURES[name]:
            assert piece in shown(app)
        await pilot.resize_terminal(160, 45)
        await settle(app, pilot)
        evidence, picture = app.query_one("#finding"), app.query_one("#picture")
        assert evidence.region.x >= picture.region.right
        for piece in PICTURES[name]:
            assert piece in shown(app)


async def test_a_large_screen_shows_the_run_up_to_the_hang(fixtures):
    """The matrix of a hang has few rows; below it are the steps of the culprit and the losses."""
    app = app_on(fixtures / "stuck_4ranks")
    async with app.run_test(size=(200, 50)) as pilot:
        text = await press(app, pilot, "")
        assert "Last collectives of process group default_pg, by rank   ● done   ○ scheduled   ✗ missing" in text
        assert "Time of each phase in the steps of rank 3" in text
        assert "Loss of each step" in text
        await pilot.resize_terminal(120, 40)
        assert "Loss of each step" not in await press(app, pilot, "")


async def test_a_click_on_the_picture_shows_the_chart_in_full(fixtures):
    app = app_on(fixtures / "oom_4ranks")
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot)
        await pilot.click("#picture", offset=(20, 4))
        await settle(app, pilot)
        assert app.query_one(TabbedContent).active == "memory"


async def test_no_sentence_is_shown_twice(fixtures):
    """Neither the list of findings nor a chain of one event repeats the verdict."""
    app = app_on(fixtures / "nan_4ranks")
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot)
        text = words(app)
        assert text.count("The loss of rank 3 is NaN or infinite from step 6 on") == 1
        assert "✗ the verdict above steps.nonfinite_loss" in text
        assert "Chain of events" not in text


async def test_long_events_of_the_chain_wrap(fixtures):
    app = app_on(fixtures / "stuck_4ranks")
    async with app.run_test(size=(120, 60)) as pilot:
        text = await press(app, pilot, "")
        assert "joined all_gather #89 of process group default_pg 2 Ranks 0-2 wait" in " ".join(text.split())


async def test_a_healthy_run_shows_its_steps_and_ranks(fixtures):
    app = app_on(fixtures / "healthy_4ranks")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(app, pilot)
        assert "Time of each phase in the steps of rank 0" in shown(app)
        assert "▼ longest" in shown(app)
        assert "median step" in shown(app)


async def test_a_low_screen_has_a_sparkline_in_place_of_the_chart(fixtures):
    app = app_on(fixtures / "stuck_4ranks")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(app, pilot)
        assert "●●●●●✗  last collectives of rank 3" in shown(app)
        assert "Last collectives of process group" not in shown(app)


async def test_a_low_screen_shows_no_line_of_a_rank_without_a_dump(fixtures):
    app = app_on(fixtures / "kill_4ranks")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(app, pilot)
        assert "○  last collectives of rank 1; rank 3 left no dump" in shown(app)


async def test_steps_without_durations_have_no_picture_of_them(fixtures):
    """The loss is drawn instead."""
    app = app_on(fixtures / "other_trainers" / "hf_state")
    async with app.run_test(size=(120, 40)) as pilot:
        text = await press(app, pilot, "", "1")
        assert "Time of each phase" not in text
        assert "Loss of each step" in text


async def test_a_trace_has_a_picture(fixtures):
    app = app_on(fixtures / "traces" / "straggler_4ranks")
    async with app.run_test(size=(120, 40)) as pilot:
        text = await press(app, pilot, "", "1")
        assert "Time of the traced ranks" in text
        assert "exposed communication" in text
        await pilot.resize_terminal(80, 24)
        assert "rank 3: compute 78 %" in await press(app, pilot, "")


async def test_a_tiny_screen_has_room_for_the_findings_and_the_ranks(oom):
    """The verdict is cut to four lines; another view takes the place of the findings."""
    app = app_on(oom)
    async with app.run_test(size=(40, 12)) as pilot:
        screen = await press(app, pilot, "")
        assert "Rank 1 ran out of memory" in screen
        assert "✗ rank 1: Out of host memory" in screen or "✗ rank 1: Out of memory" in screen
        ranks = await press(app, pilot, "v")
        assert "last step" in ranks
        assert "rank 1: Out of" not in ranks
