"""Jobs on nodes without a shared disk: their files come home while they run, and the answer is that of one disk."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from receivers import environment, free_port, wait_until

from analyzers import incident
from analyzers.nodes.received import read_node_list
from analyzers.steps.live import Follower
from benchmarks.cluster.cases import CASES
from benchmarks.cluster.namespaces import can_make_namespaces
from benchmarks.cluster.run_case import run_case

ROOT = Path(__file__).parents[3]
JOB = ROOT / "benchmarks" / "cluster" / "job.py"
TOKEN = "0123456789abcdef"
IN_NAMESPACES = ("dead_node", "cut_while_stuck", "receiver_restarts")


@pytest.mark.slow
@pytest.mark.skipif(not can_make_namespaces(), reason="needs to make network namespaces")
@pytest.mark.parametrize("name", IN_NAMESPACES)
def test_nodes_with_networks_of_their_own(name, tmp_path):
    [case] = [case for case in CASES if case.name == name]
    answer = run_case(case, tmp_path / "cluster")
    assert answer.problems(case) == []


def start_node(name, folder, rendezvous, port, output):
    """A launcher with a folder of its own; all nodes are on this machine, so the first one to listen receives."""
    (folder / "tmp").mkdir(parents=True)
    words = [
        "--nnodes",
        "2",
        "--nproc",
        "1",
        "--rdzv-endpoint",
        f"127.0.0.1:{rendezvous}",
        "--timeout",
        "20",
        "--no-watch",
    ]
    command = [sys.executable, "-P", "-m", "workbench", "launch", *words, "--collect", f":{port}", "--", str(JOB)]
    settings = {"WORKBENCH_TOKEN": TOKEN, "WORKBENCH_NODE": name, "TMPDIR": str(folder / "tmp"), "FAULT": "stuck:1:5"}
    return subprocess.Popen(command, cwd=folder, env=environment(**settings), stdout=output, stderr=output)


@pytest.mark.slow
def test_two_launchers_on_one_machine_bring_their_files_together(tmp_path):
    rendezvous, port = free_port(), free_port()
    with (tmp_path / "n0.txt").open("wb") as first, (tmp_path / "n1.txt").open("wb") as second:
        home = start_node("n0", tmp_path / "n0", rendezvous, port, first)
        wait_until((tmp_path / "n0" / "outputs" / "nodes" / "received.json").exists)
        node = start_node("n1", tmp_path / "n1", rendezvous, port, second)
        assert {home.wait(300), node.wait(300)} == {1}
    outputs = tmp_path / "n0" / "outputs"
    report = incident.analyze(outputs)
    assert report.verdict.kind == "host_stuck"
    assert report.verdict.missing == []
    [stuck] = report.verdict.ranks
    assert f"Rank {stuck} is stuck at step 6 in load_batch" in (tmp_path / "n0.txt").read_text()
    nodes = read_node_list(outputs)
    assert {name: (node.ended, node.at_home) for name, node in nodes.nodes.items()} == {
        "n0": (True, True),
        "n1": (True, False),
    }
    said = (tmp_path / "n0.txt").read_text() + (tmp_path / "n1.txt").read_text()
    assert TOKEN not in said
    for written in (*outputs.rglob("*.json"), *outputs.rglob("*.log")):
        assert TOKEN not in written.read_text(errors="replace")
    assert len(Follower(outputs).look().ranks) == 2


def test_a_job_that_collects_needs_a_token(tmp_path):
    command = [sys.executable, "-P", "-m", "workbench", "launch", "--collect", "127.0.0.1:29501", "--", "true"]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-2] == "error: no token: whoever can connect could send files"


def test_a_command_is_collected_too(tmp_path):
    command = [sys.executable, "-P", "-m", "workbench", "launch", "--collect", f"127.0.0.1:{free_port()}", "--no-watch"]
    settings = environment(WORKBENCH_TOKEN=TOKEN)
    ended = subprocess.run(
        [*command, "--", "sh", "-c", 'echo "token: $WORKBENCH_TOKEN."'],
        cwd=tmp_path, env=settings, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "token: .\n"
    nodes = read_node_list(tmp_path / "outputs")
    assert [node.at_home for node in nodes.nodes.values()] == [True]
    assert nodes.closed_ns
    assert json.loads((tmp_path / "outputs" / "run.json").read_bytes())["status"] == "completed"
    assert os.environ.get("WORKBENCH_TOKEN") is None
