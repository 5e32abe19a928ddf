"""Test that `workbench inspect RUN --prove` starts what a run folder names only if the person says so."""

import functools
import http.server
import json
import os
import pickle
import pty
import subprocess
import sys
import threading

import command_line
import pytest

MIB = 1 << 20
FRAMES = [{"filename": "/job/train.py", "name": "forward", "line": 10}]


@pytest.fixture
def run(tmp_path):
    """A run folder from somewhere: a snapshot of a failed allocation, and a command that leaves a trace."""
    folder = tmp_path / "run"
    snapshots = folder / "memory_snapshot" / "iteration_2"
    snapshots.mkdir(parents=True)
    entries = [
        {"action": "alloc", "addr": n * MIB, "size": MIB, "stream": 0, "time_us": n, "frames": FRAMES}
        for n in range(1, 21)
    ]
    failed = {"action": "oom", "device_free": 60 * MIB, "size": 64 * MIB, "stream": 0, "time_us": 21, "frames": FRAMES}
    blocks = [
        {"address": n * MIB, "size": MIB, "requested_size": MIB, "state": "active_allocated", "frames": FRAMES}
        for n in range(1, 21)
    ]
    segment = {
        "device": 0, "address": MIB, "total_size": 20 * MIB, "allocated_size": 20 * MIB, "active_size": 20 * MIB,
        "requested_size": 20 * MIB, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0),
        "is_expandable": False, "frames": [], "blocks": blocks,
    }  # fmt: skip
    snapshot = {"segments": [segment], "device_traces": [[*entries, failed]], "allocator_settings": {}}
    (snapshots / "rank0_memory_snapshot.pickle").write_bytes(pickle.dumps(snapshot))
    command = ["sh", "-c", f"touch {tmp_path}/executed", "--batch-size", "8"]
    manifest = {"schema": "workbench.run/1", "argv": ["x"], "command": command, "world_size": 1}
    (folder / "run.json").write_text(json.dumps(manifest))
    return folder


def verdict(ended):
    return json.loads(ended.stdout)["verdict"]


def test_without_permission_the_command_is_printed_and_not_started(run, tmp_path):
    ended = command_line.run("inspect", run, "--prove")
    assert ended.returncode == 2
    assert f"-- sh -c 'touch {tmp_path}/executed' --batch-size 4" in ended.stderr
    assert "add --yes" in ended.stderr
    assert not (tmp_path / "executed").exists()


def test_the_printed_command_hides_nothing(run, tmp_path):
    manifest = json.loads((run / "run.json").read_text())
    manifest["command"] = ["sh", "-c", f"true\r\x1b[8m; touch {tmp_path}/executed\n\u202e", "--batch-size", "8"]
    (run / "run.json").write_text(json.dumps(manifest))
    ended = command_line.run("inspect", run, "--prove")
    assert f"'true\\r\\x1b[8m; touch {tmp_path}/executed\\n\\u202e'" in ended.stderr


@pytest.mark.parametrize(("answer", "is_started"), [("n\n", False), ("\n", False), ("y\n", True)])
def test_on_a_terminal_the_person_is_asked(run, tmp_path, answer, is_started):
    here, there = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "workbench", "inspect", run, "--prove", "--no-tui"],
        stdin=there, stdout=there, stderr=there, close_fds=True,
    )  # fmt: skip
    os.close(there)
    seen = b""
    try:
        while b"Start it? [y/N] " not in seen:
            seen += os.read(here, 4096)
        assert b"touch" in seen
        for _ in range(3):  # a run for each smaller batch, until one shows its memory
            os.write(here, answer.encode())
        while part := os.read(here, 4096):
            seen += part
    except OSError:  # the end of a terminal
        pass
    finally:
        os.close(here)
        process.wait(120)
    assert (tmp_path / "executed").exists() is is_started


def test_with_yes_it_is_started_and_a_run_that_measured_nothing_proves_nothing(run, tmp_path):
    """The command ends well without a step and without a snapshot: that was called `proved`."""
    ended = command_line.run("inspect", run, "--prove", "--yes", "--json")
    assert (tmp_path / "executed").exists()
    assert (verdict(ended)["class"], verdict(ended)["status"]) == ("inconclusive", "unknown")
    [finding] = json.loads(ended.stdout)["findings"]
    assert finding["id"] == "proof.inconclusive"
    assert "none of its memory was measured" in finding["title"]


def test_a_command_of_the_person_is_started_instead_of_the_recorded_one(run, tmp_path):
    own = ("sh", "-c", f"touch {tmp_path}/mine", "--batch-size", "8")
    ended = command_line.run("inspect", run, "--prove", "--json", "--", *own)
    assert (tmp_path / "mine").exists()
    assert not (tmp_path / "executed").exists()
    assert verdict(ended)["class"] == "inconclusive"


def test_dashes_without_prove_allow_a_path_that_begins_with_one(run):
    odd = run.rename(run.parent / "-run")
    assert command_line.run("inspect", "--json", "--", odd.name, cwd=odd.parent).returncode == 0


def test_a_fetched_run_is_never_started(run, tmp_path):
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=run.parent)
    handler.func.log_message = lambda *_: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/run/"
        cache = os.environ | {"WORKBENCH_CACHE": str(tmp_path / "cache")}
        for words in (("--yes",), ("--", "sh", "-c", f"touch {tmp_path}/executed")):
            ended = command_line.run("inspect", url, "--prove", *words, env=cache)
            assert ended.returncode == 3, ended.stderr
            assert "only read" in ended.stderr
        server.shutdown()
    copied = tmp_path / "cache" / "remote" / "0" / "files"
    copied.parent.mkdir(parents=True)
    run.rename(copied)
    assert command_line.run("inspect", copied, "--prove", "--yes", env=cache).returncode == 3
    assert not (tmp_path / "executed").exists()
