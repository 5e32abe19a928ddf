"""A run folder that names processes, sockets and folders: nothing is signalled, contacted or removed on its word."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from workbench.recorders.hang.collector import once, remove_socket
from workbench.recorders.hang.rank_process import RankProcess, start_ticks

SIGNAL = signal.SIGRTMIN + 8
HOLDS = """
import faulthandler, signal, sys, time
if sys.argv[2] == "open": held = open(sys.argv[1], "a")
if sys.argv[3] == "caught": signal.signal(int(sys.argv[4]), lambda *_: print("signalled", flush=True))
if sys.argv[3] == "stacks": faulthandler.register(int(sys.argv[4]), held, all_threads=True)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def victim() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Fixture: `victim(folder, file, handler)` starts a process that may have the file of stacks open."""
    started: list[subprocess.Popen[str]] = []

    def start(folder: Path, file: str = "", handler: str = "") -> "subprocess.Popen[str]":
        path = folder / "dumps" / ".stacks_0.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        command = [sys.executable, "-c", HOLDS, str(path), file, handler, str(int(SIGNAL))]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout is not None
        assert started[-1].stdout.readline() == "ready\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def write_side_file(folder: Path, process: int, **other: object) -> None:
    side: dict[str, Any] = {
        "schema": "workbench.groups/1",
        "rank": 0,
        "world_size": 1,
        "host": socket.gethostname(),
        "pid": process,
        "start_ticks": start_ticks(process),
        "stack_signal": int(SIGNAL),
        "attempt": 0,
        "server": "/nonexistent/wb_x/rank",
        "written_ns": 1,
        "groups": {},
    }
    (folder / "dumps").mkdir(parents=True, exist_ok=True)
    (folder / "dumps" / "groups_0.json").write_text(json.dumps(side | other))


def test_a_process_of_the_run_is_asked(tmp_path: Path, victim: Callable[..., Any]) -> None:
    """The control: a process that has all proofs is signalled, and its stacks are read."""
    process = victim(tmp_path, "open", "stacks")
    write_side_file(tmp_path, process.pid)
    assert RankProcess(tmp_path, 0, 0).process == process.pid
    assert b"most recent call first" in RankProcess(tmp_path, 0, 0).signal_stacks(5)


@pytest.mark.parametrize(
    ("file", "handler", "other"),
    [
        ("", "caught", {}),
        ("open", "", {}),
        ("open", "caught", {"start_ticks": 1}),
        ("open", "caught", {"start_ticks": None}),
        ("open", "caught", {"start_ticks": "1"}),
        ("open", "caught", {"stack_signal": int(signal.SIGKILL)}),
        ("open", "caught", {"stack_signal": int(signal.SIGTERM)}),
        ("open", "caught", {"stack_signal": -1}),
        ("open", "caught", {"pid": -1}),
        ("open", "caught", {"pid": True}),
        ("open", "caught", {"pid": 1 << 40}),
        ("open", "caught", {"rank": 1}),
    ],
)
def test_a_process_without_proof_is_not_signalled(
    tmp_path: Path, victim: Callable[..., Any], file: str, handler: str, other: dict[str, object]
) -> None:
    process = victim(tmp_path, file, handler)
    write_side_file(tmp_path, process.pid, **other)
    assert RankProcess(tmp_path, 0, 0).signal_stacks(0.3) == b""
    if file == "" or set(other) & {"start_ticks", "pid", "rank"}:
        assert once(tmp_path) is None
    process.terminate()
    assert "signalled" not in process.communicate()[0]
    assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize("make", ["link", "pipe"])
def test_a_link_or_pipe_in_place_of_the_file_of_stacks_is_no_proof(
    tmp_path: Path, victim: Callable[..., Any], make: str
) -> None:
    process = victim(tmp_path / "elsewhere", "open", "caught")
    write_side_file(tmp_path, process.pid)
    path = tmp_path / "dumps" / ".stacks_0.txt"
    if make == "link":
        path.symlink_to(tmp_path / "elsewhere" / "dumps" / ".stacks_0.txt")
    else:
        os.mkfifo(path)
    for name in ("dumps/.p2p_0.bin", "steps/heartbeat_0.bin", "steps/rank_0.jsonl", "dumps/groups_1.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        os.mkfifo(tmp_path / name)
    worker = RankProcess(tmp_path, 0, 0)
    read = (worker.process, worker.heartbeat, worker.has_finished_a_step, worker.send_recv_counts)
    assert read == (None, None, False, b"")
    assert once(tmp_path) is None
    assert process.poll() is None


def test_only_a_server_of_the_rank_itself_is_contacted(tmp_path: Path, victim: Callable[..., Any]) -> None:
    """The folder names a socket of another process: of this one, which notices every connection."""
    process = victim(tmp_path, "open", "stacks")
    with tempfile.TemporaryDirectory() as home, socket.socket(socket.AF_UNIX) as listener, socket.socket() as port:
        listener.bind(f"{home}/rank")
        port.bind(("127.0.0.1", 0))
        for server in (listener, port):
            server.listen()
            server.settimeout(0.3)
        for name in (f"{home}/rank", f"127.0.0.1:{port.getsockname()[1]}", "/etc/passwd", "\0abstract", ""):
            write_side_file(tmp_path, process.pid, server=name)
            with pytest.raises((OSError, ValueError)):
                RankProcess(tmp_path, 0, 0).ask("dump_traceback", 1)
        for server in (listener, port):
            with pytest.raises(TimeoutError):
                server.accept()


def test_a_folder_that_is_named_is_not_removed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("x")
    (precious / "rank").write_text("x")
    other = tmp_path / "wb_precious"
    other.mkdir()
    (other / "rank").write_text("x")
    with socket.socket(socket.AF_UNIX) as listener:
        mine = Path(tempfile.mkdtemp(prefix="wb_", dir="/tmp"))
        listener.bind(str(mine / "rank"))
        for folder in (precious, other, mine):
            remove_socket(folder / "rank")
    assert (precious / "thesis.txt").exists()
    assert (other / "rank").exists()
    assert not mine.exists()


def test_hang_of_a_received_folder_says_that_no_rank_is_here(tmp_path: Path, victim: Callable[..., Any]) -> None:
    process = victim(tmp_path)
    write_side_file(tmp_path, process.pid)
    before = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "workbench", "hang", "--run", str(tmp_path), "--no-tui"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "no rank of this run lives on" in done.stderr
    assert process.poll() is None
    assert time.monotonic() - before < 60
