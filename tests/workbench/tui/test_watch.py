"""`workbench watch`: a job that runs and fails, as lines of text, as a redrawn status and in the app."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time

import pytest
from rich.console import Console
from textual.widgets import Static

from analyzers.errors import InputError
from analyzers.steps.live import JobState, RankState, StalledRanks
from terminal import shown as screen_text
from terminal import until
from workbench.commands.running_job import watch
from workbench.present.figure import spark
from workbench.tui.panes.home import Findings
from workbench.tui.widgets.tables import RowList
from workbench.watch.app import WatchApp
from workbench.watch.follow import LogLines, status_text
from workbench.watch.watched_job import JobWatcher, WatchedJob, alerts, stall_text

COMMAND = [sys.executable, "-m", "workbench"]


@pytest.fixture
def job(tmp_path, stuck):
    """Fixture: the finished run of a stuck job, for tests to change."""
    return shutil.copytree(stuck.root, tmp_path / "job")


@pytest.mark.slow
def test_a_job_is_watched_to_its_death(tmp_path):
    """A watcher that knows only the job's folder says the same as the launcher, and ends with the job."""
    job = [*COMMAND, "launch", "--module", "llama3", "--config", "llama3_debugmodel", "--nproc", "2"]
    broken = ["--incident", "kill", "--job.dump_folder", str(tmp_path)]
    with subprocess.Popen([*COMMAND, "watch", str(tmp_path)], stdout=subprocess.PIPE, text=True) as watching:
        subprocess.run([*job, *broken], capture_output=True, check=False, timeout=200)
        lines = watching.communicate(timeout=240)[0].splitlines(keepends=True)
    assert watching.returncode == 0
    assert [line.split()[1] for line in lines if line.startswith("step")] == [f"{n}/10" for n in range(1, 6)]
    told = "".join(lines)
    assert "have ended early" in told
    # The signal stands there only if the launcher has noted it before the watcher asks.
    assert re.search("verdict: dead: Rank 1 (died at step 6: killed by signal 9|exited at step 6)", told), told
    assert f"failed; look at it with: workbench inspect {tmp_path}" in told


def test_a_job_that_has_ended_is_told_at_once(stuck, capsys):
    watch(stuck.root, tui=False)
    told = capsys.readouterr().out
    assert "step 5/10  loss 6.0127" in told
    assert "verdict: host stuck: Rank 1 is stuck at step 6" in told
    assert told.splitlines()[-1].startswith("failed; ")


def test_a_folder_may_be_created_later(tmp_path, stuck, capsys):
    folder = tmp_path / "job"
    watching = threading.Thread(target=watch, args=(folder,), kwargs={"tui": False})
    watching.start()
    time.sleep(1)
    assert watching.is_alive()
    shutil.copytree(stuck.root, tmp_path / "copy")
    (tmp_path / "copy").rename(folder)
    watching.join()
    said = capsys.readouterr()
    assert f"waiting for {folder}" in said.err
    assert said.out.splitlines()[-1].startswith("failed; ")


def test_a_file_is_no_folder_to_watch(stuck):
    with pytest.raises(InputError, match="not a folder"):
        watch(stuck.root / "run.json", tui=False)


async def test_a_slow_look_is_not_overtaken(job, monkeypatch):
    """On a slow disk, a second update must not begin before the first has ended: both would change the same logs."""
    app, at_once, most = WatchApp(job), [], []
    look = app._watcher.look

    def slow_look():
        at_once.append(1)
        most.append(len(at_once))
        time.sleep(0.2)
        at_once.pop()
        return look()

    monkeypatch.setattr(app._watcher, "look", slow_look)
    async with app.run_test() as pilot:
        for _ in range(5):
            app._look()
        await until(pilot, lambda: app.job is not None and len(most) > 1)
    assert set(most) == {1}


def test_steps_that_were_seen_take_no_memory(tmp_path, script):
    """`python benchmarks/safety/soak.py watch` does this with the app for an hour of eight ranks."""
    soak = script("safety/soak")
    job, watcher, sizes = soak.GrowingJob(tmp_path / "run", ranks=1), JobWatcher(tmp_path / "run"), []
    for step in range(1, 3601):
        job.grow()
        if step % 120 == 0:
            shown = watcher.look()
            sizes.append(soak.resident_bytes(os.getpid()))
    job.close()
    assert shown.now.recent[-1].step == 3600
    # 400 steps are remembered: a third into the run nothing is new.
    assert sizes[-1] < sizes[10] + (8 << 20), sizes


def test_what_the_trainer_says_about_its_checkpoint_is_shown_once(tmp_path):
    notes = ["Resumed step-2 after step 2: the run does NOT go on as it would have:\n  - seed was 42, is 7"]
    (tmp_path / "run.json").write_text(json.dumps({"status": "running", "notes": [*notes, 3]}))
    job, log_lines = JobWatcher(tmp_path).look(), LogLines()
    assert job.now.notes == tuple(notes)
    assert list(log_lines.new_lines(job)) == notes
    assert list(log_lines.new_lines(job)) == []
    assert [alert.text for alert in alerts(job)] == notes


def shown(app):
    return app.query_one("#summary", Static).render().plain


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
async def test_the_app_tells_verdict_and_ranks(stuck, size):
    app = WatchApp(stuck.root)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.job is not None and app.job.report is not None)
        assert "✗ failed  step 5/10" in shown(app)
        ranks = app.query_one(RowList)
        assert "gone" in ranks.render_line(1).text
        assert ranks.render_line(1).text.startswith("    1 ")
        await pilot.press("s")
        assert ranks.render_line(1).text.startswith("    0 ")
        await pilot.press("i")
    assert app.return_value is True


async def test_a_high_screen_shows_the_home_view_of_the_verdict(stuck):
    """It has the picture, the evidence, the chain and the findings; Enter on a finding leads to the recorded files."""
    app = WatchApp(stuck.root)
    async with app.run_test(size=(200, 50)) as pilot:
        pieces = ("Last collectives of process group", "Chain of events", "hang.host_stuck", "gone", "py-spy dump")
        drawn = ("● done", "▼ longest 284 ms", "loss 6.0127 … 6.3332")
        # Each chart is drawn when its data is read, after the verdict.
        await until(pilot, lambda: all(piece in screen_text(app) for piece in (*pieces, *drawn)))
        text = screen_text(app)
        assert text.count("Rank 1 is stuck at step 6 in loop_in_python (trainer/faults.py:138) and never joined") == 2
        assert sum(not line.strip(" █│") for line in text.splitlines()) <= 8
        app.query_one(Findings).focus()
        await pilot.press("enter")
    assert app.return_value is True


async def test_a_low_screen_shows_what_to_do_next(stuck):
    app = WatchApp(stuck.root)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "Next" in screen_text(app))
        assert "py-spy dump --locals" in screen_text(app)
        assert "gone" in screen_text(app)


async def test_the_app_follows_what_is_written(job):
    """Steps appear when they are written; while the app is paused, the picture does not change."""
    log = job / "steps" / "rank_0.jsonl"
    more = log.read_text().splitlines(keepends=True)[2:]
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:2]))
    (job / "steps" / "rank_1.jsonl").unlink()
    app = WatchApp(job)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "step 1/10" in shown(app))
        await pilot.press("space")
        with log.open("a") as file:
            file.writelines(more)
        await pilot.pause(0.8)
        assert "step 1/10" in shown(app)
        await pilot.press("space")
        await until(pilot, lambda: "step 5/10" in shown(app))


def rank(number, state="running", **more):
    told = {"host": "a", "attempt": 0, "step": 7, "phase": "fwd", "quiet_s": 1.0, "memory_bytes": 1 << 30}
    limits = {"limit_bytes": 2 << 30, "growth_bytes": None, "oom_step": None}
    return RankState(rank=number, state=state, **told | limits | more)


def test_a_board_of_many_ranks_fits_and_shows_trouble_first():
    ranks = [rank(n) for n in range(1000)]
    ranks[700], ranks[900] = rank(700, "stalled", phase="\x1b[31m[red]x"), rank(900, oom_step=12)
    stall = StalledRanks(ranks=[700], step=7, phase="fwd", stalled_s=9.0, dumps_in_s=31.0, ends_in_s=91.0)
    now = JobState(status="stalled", world_size=1000, steps=20, ranks=ranks, stall=stall)
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(status_text(WatchedJob(now), 80, 24))
    lines = console.file.getvalue().splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert "rank 700 has been in fwd of step 7 for 9 s; dumps are written in 31 s" in " ".join(lines)
    head = next(n for n, line in enumerate(lines) if line.startswith(" rank state"))
    assert "[31m[red]" in lines[head + 1]
    assert "1.0 GiB step 12" in lines[head + 2]
    assert "more ranks" in lines[-1]


def test_a_line_of_numbers_keeps_the_highest_and_the_broken():
    assert spark([0, 1, 2, 3], 4) == "▁▃▆█"
    assert spark([0] * 50 + [9] + [0] * 49, 10) == "▁▁▁▁▁█▁▁▁▁"
    assert spark([1, float("nan"), 2], 3) == "▁✗█"
    assert spark([], 5) == ""
    assert spark([3, 3], 5) == "▁▁"


@pytest.mark.parametrize(("phase", "words"), [("step", "in step 6 for"), ("fwd", "in fwd of step 6 for")])
def test_a_stall_outside_the_marked_phases_is_in_the_step(phase, words):
    stall = StalledRanks(ranks=[0, 1], step=6, phase=phase, stalled_s=9.0, dumps_in_s=None, ends_in_s=None)
    assert words in stall_text(stall)


async def test_a_redraw_after_the_end_of_the_app_is_skipped(job):
    """A look at a slow disk may end after the user has quit."""
    app = WatchApp(job)
    async with app.run_test() as pilot:
        await until(pilot, lambda: app.job is not None)
    app.on_resize()
