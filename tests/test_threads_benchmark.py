"""The public threads: labels belong to texts, and the program lays answers beside the truth and counts scores."""

import json
from pathlib import Path

import pytest

from benchmarks.threads import __main__ as program

LABELS = [program.Thread(**label) for label in program.read_lines(program.HERE / "labels.jsonl")]


def test_each_thread_has_its_text_and_its_score():
    logs = {path.relative_to(program.HERE).as_posix() for path in (program.HERE / "in").iterdir()}
    assert {thread.input for thread in LABELS} == logs
    assert len({thread.id for thread in LABELS}) == len(LABELS) == len(logs) > 100
    assert all("#" in thread.source and thread.certainty in ("confirmed", "likely") for thread in LABELS)
    assert all((program.HERE / log).stat().st_size < 4096 for log in logs)
    assert {score["id"] for score in program.read_lines(program.HERE / "scores.jsonl")} == {t.id for t in LABELS}


def test_answers_stand_beside_the_truth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    one, two = LABELS[0], next(thread for thread in LABELS if thread.group == "healthy")
    scores = tmp_path / "scores.jsonl"
    score = {
        "id": one.id,
        "verdict": "right",
        "rank": "-",
        "line": "-",
        "next": "cure",
        "false_statement": "",
        "helped": "yes",
    }
    scores.write_text(json.dumps(score) + "\n")
    arguments = ["--only", one.id, two.id, "--folder", str(tmp_path / "answers"), "--scores", str(scores)]
    monkeypatch.setattr("sys.argv", ["threads", *arguments])
    assert program.main() == 0
    answer = (tmp_path / "answers" / f"{one.id}.md").read_text()
    assert all(
        part in answer for part in (one.source, one.truth, one.cure, "Verdict  ✗", "find_unused_parameters=True` to")
    )
    assert "Not scored yet" in (tmp_path / "answers" / f"{two.id}.md").read_text()
    table = (tmp_path / "answers" / "table.md").read_text()
    assert "| **all** | 1 | 1 |" in table
    assert table in capsys.readouterr().out
