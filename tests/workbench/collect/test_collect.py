"""`--collect` and `workbench collect`: the files of all nodes come to one URL, whole, and the answer is that of all."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import msgspec
import pytest

from analyzers import incident
from analyzers.errors import InputError
from analyzers.run import Node, read_node_list
from ranks import free_port
from workbench.collect import (
    OTHER_JOB_S,
    Incident,
    Sender,
    Store,
    artefacts_below,
    last_incident,
    node_name,
    request_dumps,
)
from workbench.errors import UsageProblem

ROOT = Path(__file__).parents[3]
JOB = ROOT / "benchmarks" / "cluster" / "job.py"
WORKBENCH = (sys.executable, "-P", "-m", "workbench")
NOT_ARTEFACTS = (
    *("checkpoint/step-5/__0_0.distcp", ".secret", "dumps/.asked", "model.safetensors", "steps/x.pt", "train.py"),
    *("nodes/n2/steps/rank_0.jsonl", "previous/run.json", "logs/a\nb.log"),
)


def write(path, content, *, ended_ago_s=60):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    os.utime(path, (time.time() - ended_ago_s,) * 2)
    return path


@pytest.fixture
def run(tmp_path):
    """The folder of a node's run that has ended."""
    folder = tmp_path / "outputs"
    write(folder / "dumps" / "rank_2", b"\x80\x02" + os.urandom(1 << 20))
    write(folder / "dumps" / "groups_2.json", '{"rank": 2}')
    write(folder / "steps" / "rank_2.jsonl", "line\n" * 1000)
    write(folder / "logs" / "workbench_x" / "attempt_0" / "0" / "stderr.log", "")
    write(folder / "run.json", '{"schema": "workbench.run/1", "status": "failed"}')
    return folder


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def visible(files):
    return {path: content for path, content in files.items() if "/." not in f"/{path}"}


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_node_writes_its_run_and_ends_with_its_job(run, tmp_path, form):
    wanted = visible(files_of(run))
    for path in NOT_ARTEFACTS:
        write(run / path, "no artefact")
    (run / "logs" / "link.log").symlink_to("/etc/hostname")
    home = tmp_path / "home"
    command = [*WORKBENCH, "collect", str(run), "--to", form.format(home), "--nodes", "3"]
    ended = subprocess.run(
        command, env=os.environ | {"WORKBENCH_NODE": "n1"}, capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    come = files_of(home / "nodes" / "n1")
    report = msgspec.json.decode(come.pop("node.json"), type=Node)
    assert come == wanted
    assert (report.ended, report.expected, report.files) == (True, 3, len(come))
    assert read_node_list(home).expected == 3


def test_a_url_is_written_through_fsspec(run):
    files = fsspec.filesystem("memory")
    files.store.clear()
    Sender(run, "memory://bucket/run", "n1").send_new(ended=True)
    assert files.cat("/bucket/run/nodes/n1/dumps/rank_2") == (run / "dumps" / "rank_2").read_bytes()
    assert not [name for name in files.find("/bucket") if "/." in name], "no draft is left"
    files.store.clear()


def test_only_what_changed_is_written_again(run, tmp_path):
    home = tmp_path / "home"
    sender = Sender(run, str(home), "n1")
    beat = write(run / "steps" / "heartbeat_2.bin", b"1" * 64)
    sender.send_new(ended=False)
    (home / "nodes" / "n1" / "dumps" / "rank_2").unlink()
    times = beat.stat()
    beat.write_bytes(b"2" * 64)
    os.utime(beat, ns=(times.st_atime_ns, times.st_mtime_ns))
    with (run / "steps" / "rank_2.jsonl").open("a") as log:
        log.write("more\n")
    sender.send_new(ended=True)
    assert not (home / "nodes" / "n1" / "dumps" / "rank_2").exists()
    assert (home / "nodes" / "n1" / "steps" / "heartbeat_2.bin").read_bytes() == b"2" * 64
    assert (home / "nodes" / "n1" / "steps" / "rank_2.jsonl").read_text().endswith("line\nmore\n")


def test_two_machines_of_one_name_are_both_kept(run, tmp_path):
    other = tmp_path / "other"
    write(other / "steps" / "rank_0.jsonl", "other\n")
    home = tmp_path / "home"
    for folder in (run, other, run):
        Sender(folder, str(home), "n1").send_new(ended=False)
    assert len(read_node_list(home).nodes) == 2


def test_the_files_of_an_earlier_job_are_not_mixed_with_those_of_this_one(run, tmp_path):
    home = tmp_path / "home"
    last_ns = time.time_ns() - int((OTHER_JOB_S + 60) * 1e9)
    write(home / "nodes" / "n9" / "node.json", msgspec.json.encode(Node(session="x", last_ns=last_ns, ended=True)))
    before = files_of(home)
    with pytest.raises(InputError, match="files of an earlier job"):
        Sender(run, str(home), "n1")
    assert files_of(home) == before


def test_a_url_that_cannot_be_written_says_so(run, tmp_path):
    home = write(tmp_path / "home", "a file")
    with pytest.raises(InputError):
        Sender(run, str(home / "x"), "n1").send_new(ended=True)
    ended = subprocess.run(
        [*WORKBENCH, "launch", "--no-watch", "--collect", "nosuch://x", "--", "true"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 3
    assert "nosuch is no known protocol" in ended.stderr


@pytest.mark.parametrize("name", ["a/b", "..", "a\nb", ".x", "x" * 300])
def test_only_plain_names_of_nodes_are_accepted(monkeypatch, name):
    monkeypatch.setenv("WORKBENCH_NODE", name)
    with pytest.raises(UsageProblem):
        node_name()


def leave_groups(folder, rank):
    """Write what the recorders of a rank leave for the collector of its node."""
    groups = {"schema": "workbench.groups/1", "rank": rank, "world_size": 2, "pid": 1, "attempt": 0, "written_ns": 1}
    host = os.uname().nodename
    write(folder / "dumps" / f"groups_{rank}.json", json.dumps({**groups, "host": host, "server": "", "groups": {}}))


def test_dumps_of_one_node_make_all_others_take_theirs(tmp_path):
    home, folders = tmp_path / "home", [tmp_path / "n0", tmp_path / "n1"]
    for rank, folder in enumerate(folders):
        leave_groups(folder, rank)
    senders = [Sender(folder, str(home), f"n{i}") for i, folder in enumerate(folders)]
    for sender in senders:
        sender.send_new(ended=False)
    stall = Incident("stalled", "no step for 9 s", time.time_ns())
    write(folders[0] / "dumps" / ".claimed", msgspec.json.encode(stall))
    assert last_incident(folders[0] / "dumps") == stall
    for sender in senders:
        sender.send_new(ended=False)
    request = json.loads((folders[1] / "dumps" / ".ask_1.json").read_text())
    assert (request["reason"], request["elsewhere"]) == ("stalled", True)
    assert not (folders[0] / "dumps" / ".ask_0.json").exists()
    (folders[1] / "dumps" / ".ask_1.json").unlink()
    senders[1].send_new(ended=False)
    assert not (folders[1] / "dumps" / ".ask_1.json").exists(), "once is enough"


def test_hostile_reports_and_incidents_are_left_out(run, tmp_path):
    home = tmp_path / "home"
    write(home / "incidents" / "n0.json", "[" * 50_000)
    write(home / "incidents" / "n2.json", json.dumps({"reason": 1}))
    (home / "incidents" / "n3.json").symlink_to("/dev/zero")
    write(home / "nodes" / "n0" / "node.json", '{"last_ns": "x"}')
    sender = Sender(run, str(home), "n1")
    sender.send_new(ended=True)
    assert Store(str(home)).read("incidents", Incident) == {}


def test_a_link_or_pipe_that_another_node_left_leads_nowhere(run, tmp_path):
    home, victim = tmp_path / "home", tmp_path / "victim"
    write(victim / "run.json", "years of work")
    (home / "nodes").mkdir(parents=True)
    (home / "nodes" / "n1").symlink_to(victim)
    with pytest.raises(InputError, match="is a link"):
        Sender(run, str(home), "n1")
    assert files_of(victim) == {"run.json": b"years of work"}
    (home / "nodes" / "evil").mkdir()
    (home / "incidents").mkdir()
    for pipe in (home / "nodes" / "evil" / "node.json", home / "incidents" / "evil.json"):
        os.mkfifo(pipe)
    sender = Sender(run, str(home), "n2")
    sender.send_new(ended=True)
    assert files_of(victim) == {"run.json": b"years of work"}


def test_a_request_needs_a_rank_of_this_node(tmp_path):
    assert not request_dumps(tmp_path, Incident("stalled", "", 1))


def test_names_of_the_recorders_are_artefacts(fixtures):
    sent = set(artefacts_below(fixtures / "oom_2ranks"))
    assert {"run.json", "dumps/rank_0", "steps/rank_1.jsonl", "dumps/collection.json"} <= sent


def start_node(name, folder, rendezvous, home, output):
    folder.mkdir()
    words = ["--nnodes", "2", "--nproc", "1", "--rdzv-endpoint", f"127.0.0.1:{rendezvous}", "--timeout", "20"]
    command = [*WORKBENCH, "launch", *words, "--no-watch", "--collect", f"file://{home}", "--", str(JOB)]
    settings = os.environ | {"WORKBENCH_NODE": name, "FAULT": "stuck:1:5", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=folder, env=settings, stdout=output, stderr=output)


@pytest.mark.slow
def test_two_launchers_bring_their_files_together(tmp_path):
    home, says, port = tmp_path / "home", [tmp_path / "n0.txt", tmp_path / "n1.txt"], free_port()
    with says[0].open("wb") as first, says[1].open("wb") as second:
        head = start_node("n0", tmp_path / "n0", port, home, first)
        # The first node has the rendezvous and rank 0: when its rank gives up, the other launcher ends, too.
        deadline = time.monotonic() + 60
        while not (home / "nodes" / "n0" / "node.json").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        other = start_node("n1", tmp_path / "n1", port, home, second)
        assert (head.wait(300), other.wait(300)) == (1, 1)
    report = incident.analyze(home)
    assert (report.verdict.kind, report.verdict.missing) == ("host_stuck", [])
    [stuck] = report.verdict.ranks
    printed = "".join(path.read_text() for path in says)
    assert f"Rank {stuck} is stuck at step 6 in load_batch" in printed
    assert all(node.ended for node in read_node_list(home).nodes.values())


def test_a_command_is_collected_too(tmp_path):
    home = tmp_path / "home"
    command = [*WORKBENCH, "launch", "--no-watch", "--collect", str(home), "--", "sh", "-c", "env"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert "WORKBENCH_COLLECT_URL" not in ended.stdout, "it may hold a password"
    [node] = read_node_list(home).nodes.values()
    assert node.ended
    [manifest] = home.glob("nodes/*/run.json")
    assert json.loads(manifest.read_text())["status"] == "completed"


def test_the_files_of_an_earlier_run_in_the_folder_are_not_written(tmp_path):
    write(tmp_path / "outputs" / "steps" / "rank_0.jsonl", "of the run before\n")
    write(tmp_path / "outputs" / "run.json", '{"schema": "workbench.run/1", "status": "completed", "started_ns": 1}')
    command = [*WORKBENCH, "launch", "--no-watch", "--collect", str(tmp_path / "home"), "--", "sleep", "8"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert not list((tmp_path / "home").rglob("rank_0.jsonl"))
    assert list((tmp_path / "outputs" / "previous").rglob("rank_0.jsonl"))


def test_a_file_for_whose_copy_there_is_no_room_is_not_taken_for_written(run, tmp_path):
    """The node must not report that all of its files are there."""
    home = tmp_path / "home"
    sender = Sender(run, str(home), "n1")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, before[1]))
    try:
        with pytest.raises((OSError, InputError)):
            sender.send_new(ended=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (home / "nodes" / "n1" / "node.json").exists()
    sender.send_new(ended=True)
    assert (home / "nodes" / "n1" / "dumps" / "rank_2").read_bytes() == (run / "dumps" / "rank_2").read_bytes()
    assert read_node_list(home).nodes["n1"].ended


def test_a_signal_lets_a_sender_write_the_rest(run, tmp_path):
    write(run / "run.json", '{"schema": "workbench.run/1", "status": "running"}')
    home = tmp_path / "home"
    process = subprocess.Popen([*WORKBENCH, "collect", str(run), "--to", str(home)], stderr=subprocess.PIPE, text=True)
    assert "writing" in process.stderr.readline()
    write(run / "logs" / "late.log", "late")
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 0, said
    [late] = home.glob("nodes/*/logs/late.log")
    assert late.read_text() == "late"
