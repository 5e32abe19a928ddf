"""The views of the terminal app, used by keys, on recorded runs."""

import json
import os
import re
import shutil
import threading

import pytest
from textual._compositor import Compositor
from textual.widgets import ContentSwitcher, DataTable

from analyzers.run import discover
from analyzers.store import Options
from analyzers.words import share
from terminal import app_on, press, shown, until
from workbench.source_files import LARGEST_BYTES, find_source, source_files_by_name
from workbench.tui.app import SourceScreen, WorkbenchApp
from workbench.tui.panes.memory import MemoryViews
from workbench.tui.panes.steps import StepsPane
from workbench.tui.panes.trace import TracePane
from workbench.tui.subject import comparison
from workbench.tui.widgets.common import fitted
from workbench.tui.widgets.gantt import Gantt
from workbench.tui.widgets.line_chart import LossChart, PhaseChart
from workbench.tui.widgets.tables import Grid, RowList
from workbench.tui.widgets.trees import CallTree, MemoryTree, StackTree


async def test_a_hang_is_explained_below_its_matrix(fixtures):
    """Its views are stacks as a tree (`i` adds library frames), operations side by side, and where each rank waits."""
    app = app_on(fixtures / "stuck_4ranks", "hang")
    async with app.run_test(size=(100, 36)) as pilot:
        text = await press(app, pilot, "")
        assert "Stack of rank 3, innermost frame first" in text
        assert "loop_in_python  trainer/faults.py:138" in text
        text = await press(app, pilot, "v")
        assert "loop_in_python  trainer/faults.py:138  rank 3" in text
        assert "forward_backward  trainer/train.py:154  ranks 0-2" in text
        tree = app.query_one(StackTree)
        own = len(tree._frame)
        await press(app, pilot, "i")
        assert len(tree._frame) > own
        text = await press(app, pilot, "v")
        assert "ranks 0-2" in text
        assert "all_gather" in text
        assert "3 ranks in all_gather" in await press(app, pilot, "v")


async def test_the_palette_shows_any_process_group(fixtures):
    app = app_on(fixtures / "mismatch_shape_4ranks", "hang")
    async with app.run_test(size=(100, 36)) as pilot:
        assert "group 1 (fault_0)" in await press(app, pilot, "")
        choices = {command.title: command.callback for command in app.get_system_commands(app.screen)}
        choices["Show group 0 (default_pg), ranks 0-3"]()
        assert "group 0 (default_pg), ranks 0-3   1 of 2" in await press(app, pilot, "")


async def test_traces_and_steps_begin_with_the_rank_that_the_verdict_names(fixtures):
    app = app_on(fixtures / "straggler_data_4ranks")
    async with app.run_test(size=(80, 24)) as pilot:
        assert "longest kernels of rank 3" in await press(app, pilot, "", "4")
    app = app_on(fixtures / "nan_4ranks")
    async with app.run_test(size=(80, 24)) as pilot:
        assert "rank 3 (4 of 4)" in await press(app, pilot, "", "5")


async def test_a_narrow_screen_keeps_source_lines_and_the_keys_of_every_view(fixtures):
    """The stacks of 80 columns name file, line and function, the wider ones the folder, too; nothing is scrolled to."""
    app = app_on(fixtures / "oom_4ranks", "memory")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "model.py:61 forward: silu" in shown(app))
        text = shown(app)
        assert "trainer/models/llama3/model.py:61" not in text
        assert "? Help  q Quit  ^p Palette" in text.splitlines()[-1]
        assert not app.query_one(Grid).show_horizontal_scrollbar
        await pilot.resize_terminal(140, 40)
        text = await press(app, pilot, "")
        assert "layers.0.feed_forward, trainer/models/llama3/model.py:61 forward: silu" in text
        assert "history of address 0x7fe92a7ff040" in await press(app, pilot, *"vvvv")


async def test_the_steps_of_a_straggler_come_first(fixtures):
    app = app_on(fixtures / "straggler_4ranks", "steps")
    async with app.run_test(size=(100, 36)) as pilot:
        text = await press(app, pilot, "")
        late = app.report.data.stragglers[0].rank
        assert f"rank {late} (" in text
        assert "late by" in text
        stack = app.query_one(PhaseChart)
        assert set(stack.names) >= {"fwd", "bwd", "optim"}
        text = await press(app, pilot, "v")
        assert app.query_one(RowList).row_count == 4
        assert "▁" in app.query_one(RowList).render_line(1).text


async def test_the_loss_line_marks_where_it_breaks(fixtures):
    app = app_on(fixtures / "nan_2ranks", "steps")
    async with app.run_test(size=(100, 36)) as pilot:
        await press(app, pilot, "", "v", "v")
        loss = app.query_one(LossChart)
        first = app.report.data.first_nonfinite_step
        assert [loss.instants["step"].iloc[row] for row in loss.signs()] == list(range(first, 11))


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
async def test_a_trace_as_bars_kernels_and_events(fixtures, size):
    """The bars show the numbers of the report; the time range of the events follows the keys."""
    app = app_on(fixtures / "straggler_data_2ranks", "trace")
    async with app.run_test(size=size) as pilot:
        text = await press(app, pilot, "")
        one, late = app.report.data.ranks
        assert share(one.exposed_communication_ns, one.span_ns) in text
        assert late.kernels[0].name[:20] in text
        await press(app, pilot, "v")
        gantt = app.query_one(Gantt)
        whole = gantt._window
        ruler = [float(text) for text in re.findall(r"╷([\d.]+) m?s", gantt.render_line(1).text)]
        assert ruler == pytest.approx([number * ruler[1] for number in range(len(ruler))])
        assert f"{ruler[1]:e}"[0] in "125"
        await press(app, pilot, "plus", "plus", "l")
        first, last = gantt._window
        assert last - first == pytest.approx((whole[1] - whole[0]) / 4, abs=4)
        assert first > whole[0]
        assert "ProfilerStep" in shown(app)
        await press(app, pilot, "0")
        assert gantt._window == whole
        assert "of rank 0 (1 of 2)" in await press(app, pilot, "]")
        assert "Work by phase that launched it, rank 0" in await press(app, pilot, "V", "V")
        assert "gloo:" in await press(app, pilot, "V")
        path = [row.split("\t") for row in app.query_one("#critical", Grid).lines]
        assert {kind for _, kind, *_ in path} >= {"compute", "communication", "host"}


async def test_the_life_of_a_block_and_what_changed(fixtures):
    app = app_on(fixtures / "oom_2ranks", "memory")
    async with app.run_test(size=(120, 40)) as pilot:
        await press(app, pilot, "", "v", "v", "v")
        listed = app.query_one("#list", Grid)
        address = listed.text_at_cursor().split("\t")[1]
        listed.focus()
        assert f"history of address {address}" in await press(app, pilot, "enter")
        assert address in app.query_one("#life", Grid).text_at_cursor()
        app.query_one("#area").focus()
        text = await press(app, pilot, "h", "h", "space", "l", "l", "d")
        assert "what changed since the mark" in text
        assert "layers.0.feed_forward" in "".join(app.query_one("#changes", Grid).lines)
        assert "allocated by pool" in await press(app, pilot, "v")
        assert "allocated by stream" in await press(app, pilot, "b")
        text = await press(app, pilot, "b")
        assert "allocated by phase" in text
        assert "forward" in text
        assert "allocator events" in await press(app, pilot, "v")
        entry = str(app.query_one(MemoryViews)._instant.entry)
        listed = [line.split("\t") for line in app.query_one("#entries", Grid).lines]
        assert entry in [one[0].strip() for one in listed]
        assert {one[1].strip() for one in listed} <= {"alloc", "free_completed", "free_requested", "oom"}
        text = await press(app, pilot, "v")
        assert "reserved ranges over time" in text
        assert "MiB      0 0.0   █" in text


@pytest.mark.parametrize(
    ("run", "room", "tree"), [("traces/allocating", "trace", CallTree), ("oom_2ranks", "memory", MemoryTree)]
)
async def test_trees_of_stacks_show_library_frames_at_a_key(fixtures, run, room, tree):
    """`i` leads to the tree of functions, or of stacks, without libraries; once more it adds them."""
    app = app_on(fixtures / run, room)
    async with app.run_test(size=(140, 40)) as pilot:
        await until(pilot, lambda: app.query("ViewStrip"))
        assert re.search(r"\(i: with (libraries|library frames)\)", await press(app, pilot, "", "i"))
        users = set(app.query_one(tree)._names)
        assert users
        assert "(i: without)" in await press(app, pilot, "i")
        every = set(app.query_one(tree)._names)
        assert len(every - users) > len(users - every)
        assert "(i: with" not in await press(app, pilot, "b")


async def test_a_tall_screen_opens_the_largest_branch_of_the_tree(fixtures):
    """All lines fit on the screen; a low one shows the first level."""
    app = app_on(fixtures / "oom_4ranks", "memory")
    async with app.run_test(size=(200, 50)) as pilot:
        await until(pilot, lambda: app.query("ViewStrip"))
        await press(app, pilot, "", "v")
        tree = app.query_one(MemoryTree)
        opened = [node for node in tree.root.children if node.is_expanded]
        assert opened == [tree.root.children[0]]
        assert opened[0].children[0].is_expanded
        assert tree.virtual_size.height <= tree.size.height


async def test_two_runs_side_by_side(fixtures):
    runs = (discover(fixtures / name) for name in ("healthy_2ranks", "leak_2ranks"))
    app = WorkbenchApp(comparison(*runs, Options()))
    async with app.run_test(size=(120, 40)) as pilot:
        text = await press(app, pilot, "")
        assert "measures of both runs" in text
        assert "step time" in text
        await press(app, pilot, "v", "v", "v")
        assert [app.query_one("#losses", RowList).render_line(y).text[0] for y in (1, 2)] == ["a", "b"]
        await press(app, pilot, "v")
        assert "faults.name\thealthy\tleak" in app.query_one("#settings", Grid).lines


async def test_search_source_and_copy(fixtures, monkeypatch):
    """`/` searches a table, `o` opens the file that a line names, `y` copies the text under the cursor."""
    app = app_on(fixtures / "stuck_2ranks")
    copied = []
    monkeypatch.setattr(app, "copy_to_clipboard", copied.append)
    async with app.run_test(size=(100, 30)) as pilot:
        await press(app, pilot, "", "y")
        assert json.loads(copied[0])["id"] == app.report.findings[0].id
        await press(app, pilot, "6", "slash", *"timeout", "enter")
        settings = app.query_one("#settings", Grid)
        assert "timeout" in settings.text_at_cursor()
        first = settings.cursor_row
        await press(app, pilot, "n")
        assert settings.cursor_row > first
        await press(app, pilot, "3", "v", "slash", *"loop_in", "enter", "o")
        assert isinstance(app.screen, SourceScreen)
        assert "faults.py:138" in shown(app)
        assert "▶  138" in shown(app)
        await press(app, pilot, "escape")
        assert not isinstance(app.screen, SourceScreen)


def test_a_place_is_found_in_the_words_of_stacks_and_traces(tmp_path, monkeypatch):
    """If the job ran elsewhere, the last parts of the path count; a text that names no file is not opened."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job").mkdir()
    path = tmp_path / "job" / "model.py"
    path.write_text("x = 1\n")
    assert find_source(f"{path}:7 forward") == (path, 7)
    assert find_source("job/model.py(12): forward") == (path, 12)
    assert find_source("forward (/elsewhere/job/model.py:3)") == (path, 3)
    assert find_source("<frozen runpy>(88): _run_code") is None
    deep = tmp_path / "package" / "models" / "llama3"
    deep.mkdir(parents=True)
    (deep / "model.py").write_text("x = 1\n")
    source_files_by_name.cache_clear()
    assert find_source("all_gather at llama3/model.py:104") == (deep / "model.py", 104)
    (tmp_path / "other" / "llama3").mkdir(parents=True)
    (tmp_path / "other" / "llama3" / "model.py").write_text("x = 2\n")
    source_files_by_name.cache_clear()
    assert find_source("all_gather at llama3/model.py:104") is None
    os.mkfifo(tmp_path / "pipe.py")
    assert find_source(f"{tmp_path}/pipe.py:1") is None
    assert find_source(f"/{'n' * 300}.py:1") is None
    for length, is_shown in ((LARGEST_BYTES, True), (LARGEST_BYTES + 1, False)):
        path.touch()
        os.truncate(path, length)
        assert bool(find_source(f"{path}:7")) is is_shown


async def test_hostile_names_are_letters(fixtures, tmp_path):
    """Markup and escapes in a step log and in run.json are shown as plain text."""
    place = shutil.copytree(fixtures / "straggler_2ranks", tmp_path / "run")
    for log in (place / "steps").glob("*.jsonl"):
        log.write_text(log.read_text().replace('"optim"', '"[red]\\u001b[31mX[/nope]"'))
    manifest = json.loads((place / "run.json").read_text())
    manifest["config"]["job"]["description"] = "[bold]\x1b]0;owned\x07[/x]"
    (place / "run.json").write_text(json.dumps(manifest))
    app = app_on(place, "steps")
    async with app.run_test(size=(120, 40)) as pilot:
        assert "[red][31mX" in await press(app, pilot, "")
        text = await press(app, pilot, "6", "slash", *"owned", "enter")
        assert "[bold]]0;owned[/x]" in text
        assert "\x1b" not in text


async def test_every_reading_says_which_it_is(fixtures):
    """After switching through all its variants, every view is back at the first one, without an error on the way."""
    app = app_on(fixtures / "straggler_data_4ranks")
    async with app.run_test(size=(80, 24)) as pilot:
        await press(app, pilot, "")
        for view, pane, count in (("4", TracePane, 8), ("5", StepsPane, 3)):
            await press(app, pilot, view)
            switch = app.query_one(pane).query_one(ContentSwitcher)
            seen = [switch.current]
            for _ in range(count):
                await press(app, pilot, "v")
                seen.append(switch.current)
            assert len(set(seen)) == count
            assert seen[0] == seen[-1]
        assert not app._notifications


async def test_no_colour_and_a_name_for_every_key(fixtures, monkeypatch):
    """Without colours the same letters are shown; every key has an id with which users can assign another key."""
    monkeypatch.setenv("NO_COLOR", "1")
    app = app_on(fixtures / "stuck_2ranks", "hang")
    async with app.run_test(size=(80, 24)) as pilot:
        text = await press(app, pilot, "")
        assert "✗ missing" in text
        assert app.no_color
        for widget in app.query("*").results():
            ours = type(widget).__module__.startswith("workbench")
            keys = type(widget).__dict__.get("BINDINGS", []) if ours else []
            assert all(key.id for key in keys)
        assert app.query(DataTable)


@pytest.mark.parametrize(("incident", "room"), [("oom_2ranks", "memory"), ("straggler_data_2ranks", "trace")])
async def test_no_thread_looks_at_where_widgets_are(fixtures, monkeypatch, incident, room):
    """To ask for a widget's position may lay out the screen, so only the thread of the event loop may do it."""
    asked_by, find = set(), Compositor.find_widget
    monkeypatch.setattr(
        Compositor, "find_widget", lambda self, widget: (asked_by.add(threading.get_ident()), find(self, widget))[1]
    )
    app = app_on(fixtures / incident, room)
    async with app.run_test(size=(100, 36)) as pilot:
        await press(app, pilot, "", "v", "v", "v")
    assert asked_by == {threading.get_ident()}


async def test_a_very_low_screen_names_the_current_view_in_one_line(fixtures):
    app = app_on(fixtures / "oom_4ranks", "memory")
    async with app.run_test(size=(40, 12)) as pilot:
        text = await press(app, pilot, "", "v")
        assert "\n tree   tree by module after entry" in text
        assert "reserved" not in text
        assert "154.5 MiB allocated" in "\n".join(text.splitlines()[-4:])


def test_a_name_of_a_track_that_is_cut_says_so():
    assert fitted("thread 7161 (python)", 19) == "thread 7161 (pytho…"
    assert fitted("stream 7", 19) == "stream 7"


async def test_numbers_of_calls_without_callees_stay_in_their_column(fixtures):
    """Only calls with callees have an arrow, which moved their numbers to the right."""
    app = app_on(fixtures / "straggler_data_4ranks")
    async with app.run_test(size=(120, 40)) as pilot:
        lines = (await press(app, pilot, "", "4", "v", "v")).splitlines()
        calls = [line for line in lines if re.search(r"\d x  ", line)]
        with_arrow = ["▶" in line for line in calls]
        assert {*with_arrow} == {True, False}
        assert len({line.index(" x  ") for line in calls}) == 1
