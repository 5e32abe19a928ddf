"""Phases with unusable names: the log is read all the same."""

import json

from analyzers import steps
from analyzers.run import discover

NAME = 'a "phase"\x1b[31m\\'


def test_a_phase_may_be_called_anything(tmp_path):
    head = {"schema": "workbench.steps/1", "rank": 0, "world_size": 1, "started_ns": 1}
    rows = [{"step": n, "start_ns": n * 10**9, "dur_ns": 10**8, "phases": {NAME: 9 * 10**7}} for n in range(1, 9)]
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "rank_0.jsonl").write_text("\n".join(map(json.dumps, [head, *rows])))
    [rank] = steps.analyze(discover(tmp_path).artefacts).data.ranks
    assert (rank.steps, rank.phases[NAME]) == (8, 0.09)
