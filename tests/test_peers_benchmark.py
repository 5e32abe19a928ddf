"""The comparison with other tools: real tools are run, and wrong answers are recognised."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import peers

ROOT = Path(__file__).parents[1]


def run_quick(only):
    command = [sys.executable, "-m", "benchmarks.peers", "--quick", "--only", only]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_the_table_has_an_answer_and_a_cost_for_each_tool():
    done = run_quick("snapshot")
    rows = [line.split("|")[1:-1] for line in done.stdout.splitlines() if line.startswith("| snapshot")]
    answers = {tool.strip(): answer.strip() for _, _, tool, answer, *_ in rows}
    assert answers["workbench inspect"] == "yes"
    assert answers["_memory_viz stats"] == "yes"
    assert answers["_memory_viz trace"].startswith("no: live")  # it writes over its sum with a line number
    assert all(float(seconds) > 0 for *_, answer, seconds, _ in rows if answer.strip() != "not installed")
    assert "workbench inspect:" not in done.stdout


@pytest.fixture
def truth():
    return {"ranks": (3,), "busy": 2000, "compute": 1000}


def test_a_wrong_rank_is_wrong(truth):
    verdict = {"class": "host_stuck", "ranks": [3]}
    assert peers.judge_workbench_hang(json.dumps({"verdict": verdict}), truth) == "yes"
    assert peers.judge_workbench_hang(json.dumps({"verdict": verdict | {"ranks": [3, 4]}}), truth).startswith("no")
    assert peers.judge_torchfrtrace("missing ranks: {3}", truth) == "yes"
    assert peers.judge_torchfrtrace("missing ranks: {3, 4}", truth).startswith("no")


def test_a_time_may_be_rounded_but_not_wrong(truth):
    def judged(compute):
        account = {"busy_ns": 2000, "compute_ns": compute}
        return peers.judge_workbench_trace(json.dumps({"data": {"ranks": [account]}}), truth)

    assert judged(1000.5) == "yes"
    assert judged(981) == "no: compute -1.9%"


def test_tools_that_print_rounded_sizes_are_right_within_the_tolerance():
    truth = {"live": 281_963_050, "peak": 335_133_317}
    said = "  Peak:                          {}\n  Final (end of recording):      268.9MB\n"
    assert peers.judge_ptmem(said.format("319.6MB"), truth) == "yes"
    assert peers.judge_ptmem(said.format("339.6MB"), truth).startswith("no: peak")
    assert peers.judge_pt_snap(json.dumps({"peak": {"peak_allocated": 335_138_457}}), truth) == "yes"
    assert (
        peers.judge_gpu_idle(json.dumps({"measurements": {"kernel_ms": 1.9}}), {"busy": 2_000_000}) == "no: busy -5.0%"
    )


def test_guards_name_what_is_wrong_or_too_dear():
    question = peers.QUESTIONS[0]

    def row(tool, seconds, answer):
        return peers.Row(question, 64, tool, [peers.Cost(seconds, 1)], answer)

    ours, other = question.tools
    assert peers.missed([row(ours, 1, "yes"), row(other, 3, "yes")]) == []
    assert peers.missed([row(ours, 6, "yes"), row(other, 3, "yes")]) == [
        "workbench hang costs 2.0 times the cheapest of the other tools"
    ]
    assert peers.missed([row(ours, 1, "no: x"), row(other, 3, "yes")]) == ["workbench hang: no: x"]


def test_a_tool_that_cannot_be_imported_is_not_installed():
    absent = peers.Tool("absent", "absent_tool", "absent", lambda *_: [], lambda *_: "yes")
    question = peers.Question("x", "files", (1, 2, 3), lambda *_: {}, (absent,), 1.0)
    [row] = peers.ask(question, 1, 1, sys.executable, {"absent": peers.version(absent, sys.executable)})
    assert row.cells() == ("x", "1 files", "absent", "not installed", "", "")
