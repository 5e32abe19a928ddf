"""Test the conditions of `compare --fail-on`."""

import json
from pathlib import Path

import pytest
from command_line import run

from workbench.commands.failure_gate import parse_gate
from workbench.errors import UsageProblem

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("text", "severity", "limits"),
    [
        (None, None, {}),
        ("warning", "warning", {}),
        ("step_time", None, {"step_time": 0.05}),
        ("step_time>3%, memory>0.1,loss>0%", None, {"step_time": 0.03, "memory": 0.1, "loss": 0.0}),
        ("error,step_time_p95", "error", {"step_time_p95": 0.1}),
    ],
)
def test_gates(text, severity, limits):
    found = parse_gate(text)
    assert (found.severity, found.limits) == (severity, pytest.approx(limits))


@pytest.mark.parametrize("text", ["speed", "step_time<3%", "error>3%", "step_time>x", "info"])
def test_what_is_no_parse_gate(text):
    with pytest.raises(UsageProblem, match="not known"):
        parse_gate(text)


def run_of(folder, ms):
    (folder / "steps").mkdir(parents=True)
    rows = [{"schema": "workbench.steps/1", "rank": 0, "world_size": 1}] + [
        {"step": step, "start_ns": step, "dur_ns": int((ms + step % 3) * 1e6), "phases": {}, "loss": 2.0, "tags": []}
        for step in range(1, 41)
    ]
    (folder / "steps" / "rank_0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize(
    ("gates", "status"),
    [([], 0), (["--fail-on", "warning"], 1), (["--fail-on", "error"], 0), (["--fail-on", "step_time"], 1),
     (["--fail-on", "step_time>30%,loss"], 0), (["--fail-on", "memory"], 1), (["--fail-on", "nothing"], 2)],
)  # fmt: skip
def test_the_exit_status(tmp_path, monkeypatch, gates, status):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    a, b = run_of(tmp_path / "a", 100), run_of(tmp_path / "b", 120)
    done = run("compare", a, b, *gates)
    assert done.returncode == status, done.stderr
    if status == 2:
        assert done.stderr.startswith("error: --fail-on nothing: not known\nhint: ")
    else:
        assert "+20 %" in done.stdout
