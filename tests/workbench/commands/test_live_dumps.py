"""Take dumps of jobs that hang right now, from scripts with only our two recorder lines."""

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workbench.commands.running_job import run_folder

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "tests/fixtures/foreign_job.py"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


class Job:
    """Two processes of the script `foreign_job.py`."""

    def __init__(self, home: Path, fault: str, timeout_s: float) -> None:
        self.folder = home / "outputs"
        self.ranks = [self.start(rank, home, str(timeout_s), fault) for rank in range(2)]

    def start(self, rank: int, home: Path, *words: str) -> "subprocess.Popen[bytes]":
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        with (home / f"rank_{rank}.log").open("wb") as log:
            command = [sys.executable, str(SCRIPT), str(home / "store"), str(self.folder), *words]
            return subprocess.Popen(command, env=ENVIRONMENT | place, stdout=log, stderr=log)

    def wait_for(self, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 240
        while not happened():
            assert time.monotonic() < deadline, [path.read_text() for path in self.folder.parent.glob("*.log")]
            time.sleep(0.2)

    def hangs(self) -> bool:
        """Return whether the job hangs: rank 0 has issued a collective that rank 1 will never join, and both wait."""
        beats = [self.folder / f"steps/heartbeat_{rank}.bin" for rank in range(2)]
        if "tokenizing" not in (self.folder.parent / "rank_1.log").read_text():
            return False
        return all(time.time_ns() - int.from_bytes(beat.read_bytes()[:8], "little") > 3e9 for beat in beats)

    def stop(self) -> None:
        for process in self.ranks:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    started: list[Job] = []

    def run(fault: str, timeout_s: float) -> Job:
        started.append(Job(tmp_path, fault, timeout_s))
        return started[-1]

    yield run
    for job in started:
        job.stop()


def workbench(*words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "workbench", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=240, check=False)


def verdict(said: "subprocess.CompletedProcess[str]") -> tuple[str, list[int]]:
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout)["verdict"]
    assert "tokenize (fixtures/foreign_job.py:" in found["sentence"]
    return found["class"], found["ranks"]


@pytest.mark.slow
def test_a_job_that_hangs_is_asked_by_folder_and_by_process(start) -> None:
    """Each request makes a separate set of dumps; the job's own collector would take dumps only after many minutes."""
    job = start("stuck", 1800)
    job.wait_for(job.hangs)
    assert verdict(workbench("hang", "--run", job.folder, "--json")) == ("host_stuck", [1])
    first = (job.folder / "dumps/rank_0").read_bytes()
    assert verdict(workbench("hang", "--pid", job.ranks[1].pid, "--json")) == ("host_stuck", [1])
    assert (job.folder / "dumps/rank_0").read_bytes() == first
    sets = [job.folder / "dumps", job.folder / "dumps/set_2"]
    assert all(list(home.glob("round_2/rank_1*")) for home in sets)
    assert all(process.poll() is None for process in job.ranks)


@pytest.mark.slow
def test_two_lines_are_enough_to_get_dumps_well_before_the_timeout(start) -> None:
    job = start("no_send", 40)
    collection = job.folder / "dumps/collection.json"
    job.wait_for(lambda: collection.exists() and len(json.loads(collection.read_text())["rounds"]) == 2)
    told = json.loads(collection.read_text())
    assert (told["reason"], told["timeout_s"]) == ("stalled", 40)
    began_ns = told["asked_ns"] - told["stalled_s"] * 1e9
    assert told["rounds"][1]["ranks"]["0"]["answered_ns"] - began_ns < 40e9
    entries = pickle.loads((job.folder / "dumps/rank_0").read_bytes())["entries"]
    assert all(entry["retired"] for entry in entries)  # gloo does not record the recv that hangs
    found = json.loads(workbench("hang", job.folder, "--json").stdout)["verdict"]
    assert (found["class"], found["ranks"]) == ("unmatched_p2p", [1])


@pytest.mark.slow
def test_an_error_that_nobody_catches_is_recorded(start) -> None:
    job = start("error", 60)
    job.wait_for(lambda: job.ranks[1].poll() is not None)
    found = json.loads(workbench("hang", job.folder, "--json").stdout)
    assert (found["verdict"]["class"], found["verdict"]["ranks"]) == ("dead", [1])
    assert "ValueError: no tokens" in found["verdict"]["sentence"]
    assert found["data"]["culprits"][0]["victims"] == [0]


@pytest.mark.slow
def test_the_sets_of_two_nodes_are_read_together(tmp_path: Path) -> None:
    """Each node has a folder of its own; with one folder alone the answer is open, and says what else to give."""
    nodes = [tmp_path / "node_0", tmp_path / "node_1"]
    command = [sys.executable, str(ROOT / "tests/fixtures/stalled_job.py"), str(tmp_path), "30", "nodes"]
    with subprocess.Popen(command, env=ENVIRONMENT, start_new_session=True) as job:
        deadline = time.monotonic() + 240
        while not all(list(node.glob("dumps/round_2/stacks_*")) for node in nodes) and time.monotonic() < deadline:
            time.sleep(0.3)
        alone = workbench("hang", nodes[0])
        together = json.loads(workbench("hang", *nodes, "--json").stdout)
        os.killpg(job.pid, signal.SIGKILL)
    assert "Ranks 2-3 left no dump" in alone.stdout
    assert "give the folders of all nodes to one" in " ".join(alone.stdout.split())
    assert (together["verdict"]["class"], together["verdict"]["ranks"]) == ("host_stuck", [3])
    assert "loop (fixtures/stalled_job.py:" in together["verdict"]["sentence"]
    assert together["data"]["culprits"][0]["victims"] == [0, 1, 2]


def test_a_process_without_a_recorder_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        said = workbench("hang", "--pid", process.pid)
        assert process.poll() is None
        process.kill()
    assert said.returncode == 3
    error, hint = said.stderr.strip().splitlines()
    assert "(sleep 600) has no recorder to ask" in error
    assert "py-spy dump" in hint
    assert "recorders.start" in hint


def test_a_launcher_stands_for_its_ranks(tmp_path: Path) -> None:
    held = tmp_path / "dumps/.stacks_0.txt"
    held.parent.mkdir()
    with subprocess.Popen(["sh", "-c", f"sleep 600 3> {held} & wait"], start_new_session=True) as launcher:
        deadline = time.monotonic() + 120
        while not held.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert run_folder(launcher.pid) == tmp_path
        os.killpg(launcher.pid, signal.SIGKILL)


def test_what_cannot_be_asked_is_said(tmp_path: Path) -> None:
    assert workbench("hang").returncode == 2
    gone = workbench("hang", "--run", tmp_path)
    assert gone.returncode == 3
    assert "no rank of this run lives" in gone.stderr
    assert workbench("hang", "--pid", 2**22 + 1).returncode == 3
