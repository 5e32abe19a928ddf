"""Phases with unusable names: the log is read all the same."""

import json

from analyzers import steps
from analyzers.run import discover
from analyzers.steps.reading.log_lines import Names

NAME = 'a "phase"\x1b[31m\\'


def log_with_phase(folder, name):
    """Write a log of 8 steps below `folder`, whose phase `name` takes 90 ms of each."""
    head = {"schema": "workbench.steps/1", "rank": 0, "world_size": 1, "started_ns": 1}
    rows = [{"step": n, "start_ns": n * 10**9, "dur_ns": 10**8, "phases": {name: 9 * 10**7}} for n in range(1, 9)]
    (folder / "steps").mkdir()
    (folder / "steps" / "rank_0.jsonl").write_text("\n".join(map(json.dumps, [head, *rows])))


def test_a_phase_may_be_called_anything(tmp_path):
    log_with_phase(tmp_path, NAME)
    [rank] = steps.analyze(discover(tmp_path).artefacts).data.ranks
    assert (rank.steps, rank.phases[NAME]) == (8, 0.09)


def test_long_names_are_cut_and_stay_apart():
    names, same_start = Names(), "x" * 150
    assert [names(name) for name in (same_start, same_start + "y", "\ud800", same_start)] == [0, 1, 2, 0]
    assert names.texts == ["x" * 100, "x" * 98 + "#1", "?"]


def test_a_phase_with_a_long_name_keeps_its_time(tmp_path):
    log_with_phase(tmp_path, "x" * 150)
    [rank] = steps.analyze(discover(tmp_path).artefacts).data.ranks
    assert rank.phases["x" * 100] == 0.09
