"""In any state, a rank leaves dumps before its timeout, and no set of dumps replaces another."""

import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from analyzers.hangs.reading.process_groups import read_new_groups
from workbench.recorders.hang.collector import once
from workbench.recorders.hang.flight_recorder import NewGroups

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]


@pytest.fixture
def stalled(tmp_path: Path) -> Iterator[Callable[[str, int], Path]]:
    """Fixture: `stalled(fault, timeout_s)` starts the job and returns its folder."""
    started: list[subprocess.Popen[bytes]] = []

    def start(fault: str, timeout_s: int) -> Path:
        command = [sys.executable, str(ROOT / "tests/fixtures/stalled_job.py"), str(tmp_path), str(timeout_s), fault]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with (tmp_path / "log").open("wb") as log:
            started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True))
        return tmp_path

    yield start
    for job in started:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def wait_for(happened: Callable[[], bool], folder: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, (folder / "log").read_text()
        time.sleep(0.2)


def looks(home: Path) -> list[dict[str, Any]]:
    """Return the rounds of a set of dumps, after waiting until it is complete."""
    path = home / "collection.json"
    found = json.loads(path.read_text())["rounds"] if path.exists() else []
    return found if len(found) == 2 else []


def contents(home: Path) -> dict[Path, str]:
    files = [path for path in home.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def pending(path: Path) -> list[str]:
    """Return the descriptions of the groups that have incomplete operations in a dump."""
    content = path.read_bytes()
    dump = json.loads(content) if path.suffix == ".json" else pickle.loads(content)
    return [entry["process_group"][1] for entry in dump["entries"] if not entry["retired"]]


def test_a_rank_in_any_state_leaves_two_dumps_before_the_timeout(stalled: Callable[[str, int], Path]) -> None:
    """Ranks are in a collective, in a Python loop, asleep, or hold the GIL; a second request keeps the first dumps."""
    folder = stalled("states", 10)
    wait_for(lambda: bool(looks(folder / "dumps")), folder, 240)
    told = json.loads((folder / "dumps/collection.json").read_text())
    began_ns = told["asked_ns"] - told["stalled_s"] * 1e9
    for number, look in enumerate(looks(folder / "dumps")):
        home = folder / "dumps" / ("round_2" if number else "")
        assert [rank["status"] for rank in look["ranks"].values()] == ["ok"] * 4
        assert [rank["channel"] for rank in look["ranks"].values()] == ["pickle"] * 3 + ["json"]
        assert all(rank["answered_ns"] - began_ns < 10e9 for rank in look["ranks"].values())
        assert [pending(home / rank["file"]) for rank in look["ranks"].values()] == [["default_pg"], [], [], []]
    assert {path.name for path in (folder / "dumps/round_2").glob("stacks_*")} == {f"stacks_{r}.txt" for r in range(4)}
    before = contents(folder / "dumps")
    assert once(folder) == folder / "dumps/set_2"
    assert before.items() <= contents(folder / "dumps").items()
    assert [rank["status"] for rank in looks(folder / "dumps/set_2")[1]["ranks"].values()] == ["ok"] * 4


def test_every_timeout_has_a_set_of_its_own(stalled: Callable[[str, int], Path]) -> None:
    folder = stalled("again", 7)
    homes = [folder / "dumps", folder / "dumps/set_2", folder / "dumps/set_3"]
    first: dict[Path, str] = {}
    for number, home in enumerate(homes):
        wait_for((folder / f"gave_up_{number}").exists, folder, 240)
        gave_up_ns = int((folder / f"gave_up_{number}").read_text())
        assert len(looks(home)) == 2
        assert all(rank["answered_ns"] < gave_up_ns for look in looks(home) for rank in look["ranks"].values())
        assert [pending(path / "rank_0") for path in (home, home / "round_2")] == [[f"try_{number}"]] * 2
        first = first or {path: text for path, text in contents(home).items() if "set_" not in str(path)}
    assert first.items() <= contents(folder / "dumps").items()


def test_each_process_group_is_written_down_before_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist.distributed_c10d._world, "group_count", 3)
    calls = NewGroups(tmp_path / "new_groups_0.jsonl")
    calls.install()
    assert dist.distributed_c10d._process_group_name([0, 2], use_hashed_name=False) == "3"
    dist.distributed_c10d._process_group_name([0, 1], use_hashed_name=True)
    calls.remove()
    dist.distributed_c10d._process_group_name([1], use_hashed_name=False)
    (made,) = read_new_groups(tmp_path / "new_groups_0.jsonl").values()
    assert (made.number, made.members) == (3, (0, 2))
    assert made.frames[0].filename == __file__


FAILS = """
import sys
import torch.distributed as dist
from workbench import recorders
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
recorders.start(sys.argv[1], timeout_s=30)
{}
"""
OWN_HOOK = "sys.excepthook = lambda kind, error, trace: print('a report was saved')\nraise ValueError('no tokens')"


OPENS_TOO_MANY = """import os, resource
most = len(os.listdir("/proc/self/fd")) + 8
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
files = [open(__file__) for _ in range(1000)]"""


@pytest.mark.parametrize(
    ("end", "error", "line"),
    [
        (OWN_HOOK, ("ValueError", "no tokens"), 8),
        ("sys.exit('bye')", ("SystemExit", "bye"), 7),
        (OPENS_TOO_MANY, ("OSError", "[Errno 24] Too many open files"), 10),
    ],
)
def test_an_error_is_recorded_whichever_way_it_ends_the_script(
    tmp_path: Path, end: str, error: tuple[str, str], line: int
) -> None:
    """A later `sys.excepthook` may handle it, and the exit code is that of the script without recorders."""
    script = tmp_path / "train.py"
    script.write_text(FAILS.format(end))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], env=environment, check=False, timeout=240)
    assert done.returncode == 1
    recorded = json.loads((tmp_path / "dumps/exit_0.json").read_text())
    said = recorded["message"].partition(":")[0]
    assert (recorded["error"], said, recorded["traceback"][0]["line"]) == (*error, line)
    assert b"done" not in (tmp_path / "steps/heartbeat_0.bin").read_bytes()


def test_groups_without_sequence_numbers_are_left_out(tmp_path):
    """torchtitan makes its groups of one rank with the backend `fake`, which counts nothing.

    Another thread uses the group that saves checkpoints, so its number says nothing about a step.
    """
    script = """
import sys
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg
from workbench.recorders.hang.flight_recorder import FlightRecorder
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.new_group([0], backend="fake")
dist.new_group([0], backend="gloo", group_desc="checkpoint")
assert len(dist.distributed_c10d._world.pg_names) == 3
print(FlightRecorder(sys.argv[1]).sequences())
"""
    words = [sys.executable, "-c", script, str(tmp_path)]
    ended = subprocess.run(
        words, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert ended.stdout == "{'0': 0}\n", ended.stderr
