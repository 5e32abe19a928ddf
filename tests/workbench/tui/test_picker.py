"""Picking a rank, a process group, a snapshot or a step from a list that typing narrows."""

import doctest

from terminal import app_on, press, settle, shown
from workbench.tui import picker
from workbench.tui.picker import CHOICES_AT_MOST, Picker, matching
from workbench.tui.widgets.line_chart import PhaseChart


def test_the_examples():
    assert doctest.testmod(picker).failed == 0


def test_texts_with_all_words_match_those_with_whole_words_first():
    texts = ["10 (mesh_dp), ranks 0, 4", "1 (mesh_tp), ranks 0-3", "4 (mesh_tp), ranks 4-7"]
    assert matching(texts, "TP") == [1, 2]
    assert matching(texts, "tp 4") == [2]
    assert matching(texts, "4") == [2, 0]
    assert matching(texts, "") == [0, 1, 2]
    assert matching(texts, "4 (") == [2, 0]
    assert matching(texts, "x") == []


async def test_a_rank_and_a_step_are_picked(fixtures):
    app = app_on(fixtures / "straggler_4ranks")
    async with app.run_test(size=(80, 24)) as pilot:
        await press(app, pilot, "", "5")
        assert "rank 3 (4 of 4)" in shown(app)
        text = await press(app, pilot, "p")
        assert "rank 3   median 697 ms per step   late by 500 ms" in text
        text = await press(app, pilot, "1", "enter")
        assert "rank 1 (2 of 4)" in text
        assert "no match" not in text
        await press(app, pilot, "s", "7", "enter")
        chart = app.query_one(PhaseChart)
        assert int(chart.instants["step"].iloc[chart.cursor]) == 7
        assert isinstance(app.screen.focused, PhaseChart)


async def test_back_changes_nothing(fixtures):
    app = app_on(fixtures / "straggler_4ranks")
    async with app.run_test(size=(80, 24)) as pilot:
        before = await press(app, pilot, "", "5")
        await press(app, pilot, "p", "0", "escape")
        assert await press(app, pilot, "") == before


async def test_a_snapshot_and_the_beginning_of_a_step_are_picked(oom):
    app = app_on(oom)
    async with app.run_test(size=(100, 30)) as pilot:
        await press(app, pilot, "", "2")
        assert "rank 0, device 0, step 5   peak 11.3 MiB" in await press(app, pilot, "p")
        text = await press(app, pilot, *"rank", "space", "0", "enter")
        assert "rank 0, device 0, step 5  (2 of 2 ranks)" in text
        await press(app, pilot, "s", "4", "enter")
        assert "step 4" in await press(app, pilot, "s")
        assert app.screen.query_one("OptionList").highlighted == 3


async def test_a_group_is_picked_and_the_only_one_needs_no_list(fixtures):
    app = app_on(fixtures / "deadlock_4ranks")
    async with app.run_test(size=(80, 24)) as pilot:
        await press(app, pilot, "", "3", "p")
        assert isinstance(app.screen, Picker)
        assert "group " in await press(app, pilot, *"fault_1", "enter")
        assert "(fault_1)" in shown(app)
    app = app_on(fixtures / "stuck_4ranks")
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        text = " ".join((await press(app, pilot, "", "3", "p")).replace("▌", " ").split())
        assert "there is only one process group" in text


async def test_a_thousand_ranks_can_be_picked_from(fixtures):
    app = app_on(fixtures / "straggler_4ranks")
    chosen = []
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(app, pilot)
        app.push_screen(Picker("rank", [f"rank {rank}" for rank in range(1024)], 700), chosen.append)
        await pilot.pause()
        assert CHOICES_AT_MOST >= 1024
        assert "rank 700" in shown(app)
        await pilot.press(*"64", "down", "enter")
        await pilot.pause()
        # After rank 64 come those with 64 in them: 164, 264, ...
        assert chosen == [164]
