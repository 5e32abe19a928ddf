"""Run two ranks with a fault, and check the files in the run's folder."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
FLAGS = ("--parallelism.data_parallel_shard_degree", "2", "--comm.train_timeout_seconds", "8", "--faults.step", "3")


@pytest.fixture
def break_(train: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    return lambda name, *flags: train(tmp_path, 2, *FLAGS, "--faults.name", name, *flags)


def last_set(folder: Path, reason: str) -> tuple[Path, dict[str, Any]]:
    """Return the last set of dumps taken for a reason, and its collection.json.

    A slow step on a busy machine causes additional sets.
    """
    found = [(path.parent, json.loads(path.read_text())) for path in (folder / "dumps").rglob("collection.json")]
    return max(((home, told) for home, told in found if told["reason"] == reason), key=lambda one: one[1]["asked_ns"])


def groups(folder: Path, rank: int) -> dict[str, Any]:
    return json.loads((folder / f"dumps/groups_{rank}.json").read_text())["groups"]


def pending(home: Path, rank: int) -> list[tuple[str, str]]:
    """Return (group, operation) of the operations that a rank had issued but not completed when the dumps were
    taken.
    """
    path = home / f"rank_{rank}"
    dump = pickle.loads(path.read_bytes()) if path.exists() else json.loads(path.with_suffix(".json").read_text())
    return [(entry["process_group"][1], entry["profiling_name"]) for entry in dump["entries"] if not entry["retired"]]


def test_a_rank_that_holds_the_gil_still_answers(break_: Callable[..., Any]) -> None:
    # Both rounds of dumps must end before the timeout, on a busy machine, too.
    done = break_("stuck_gil", "--comm.train_timeout_seconds", "24")
    assert done.returncode == 1
    home, found = last_set(done.folder, "stalled")
    assert [look["round"] for look in found["rounds"]] == [1, 2]
    for look in found["rounds"]:
        ranks = look["ranks"]
        assert (ranks["0"]["status"], ranks["0"]["channel"], ranks["0"]["stacks"]) == ("ok", "pickle", "http")
        assert (ranks["1"]["status"], ranks["1"]["channel"]) == ("ok", "json")
        # Without py-spy by a signal: it may wake what it looks at, so it comes when nothing else is left to be asked.
        assert ranks["1"]["stacks"] in ("py-spy", None if look["round"] == 1 else "signal")
        assert ranks["1"]["heartbeat"]["step"] == 3
        assert max(rank["answered_ns"] for rank in ranks.values()) - found["asked_ns"] < 14e9
    assert pending(home, 0)
    assert not pending(home, 1)
    assert "hold_gil" in (home / "round_2/stacks_1.txt").read_text()
    failed = json.loads((done.folder / "dumps/exit_0.json").read_text())
    assert failed["time_ns"] > found["rounds"][1]["ranks"]["0"]["answered_ns"]


def test_a_skipped_collective_shows_in_the_dumps(break_: Callable[..., Any]) -> None:
    done = break_("skip")
    assert done.returncode == 1
    home, _ = last_set(done.folder, "stalled")
    assert ("fault_0", "gloo:all_reduce") in pending(home, 0)
    assert "fault_0" not in {group for group, _ in pending(home, 1)}
    assert pending(home, 1)
    assert {"ranks": [0, 1], "desc": "fault_0"} in groups(done.folder, 1).values()


def test_a_killed_rank_is_noticed_before_the_others_are_stopped(break_: Callable[..., Any]) -> None:
    done = break_("kill")
    assert done.returncode == 1
    _, found = last_set(done.folder, "died")
    assert [look["ranks"]["1"]["status"] for look in found["rounds"]] == ["exited", "exited"]
    assert [look["ranks"]["0"]["status"] for look in found["rounds"]] == ["ok", "ok"]
    assert not (done.folder / "dumps/exit_1.json").exists()


def test_out_of_memory_is_recorded_on_its_rank(break_: Callable[..., Any]) -> None:
    done = break_("oom", "--profiling.enable_memory_snapshot", "--profiling.profile_freq", "4")
    assert done.returncode == 1
    failed = json.loads((done.folder / "dumps/exit_1.json").read_text())
    assert (failed["out_of_memory"], failed["step"], failed["phase"]) == (True, 3, "fwd")
    assert failed["traceback"][-1]["name"] == "main"
    assert last_set(done.folder, "failed")[1]["detail"].startswith("rank 1")
    (written,) = (done.folder / "memory_snapshot").glob("*/*")
    assert written.parent.name == "iteration_2_exit"
    assert written.name == "rank1_memory_snapshot.pickle"


def test_a_straggler_is_late_by_what_it_does(break_: Callable[..., Any]) -> None:
    done = break_("straggler", "--faults.seconds", "0.3")
    assert done.returncode == 0
    late, waiting = done.lines(1)[3:], done.lines(0)[3:]
    assert all(line["cpu_ns"]["fwd"] > 0.2e9 for line in late)
    assert all(line["cpu_ns"]["fwd"] < line["dur_ns"] / 2 for line in waiting)


def test_a_straggler_can_be_late_in_every_other_step(break_: Callable[..., Any]) -> None:
    done = break_("straggler", "--faults.seconds", "0.3", "--faults.every", "2")
    late = {line["step"]: line["cpu_ns"]["fwd"] > 0.3e9 for line in done.lines(1) if line["step"] >= 3}
    assert late == {step: step % 2 == 1 for step in range(3, 3 + len(late))}
    assert len(late) > 2
