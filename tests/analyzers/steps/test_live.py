"""Watch jobs through their files, which the tests write line by line like a job."""

import json
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest
from running_job import FakeRank, manifest

from analyzers.steps.live import Follower
from analyzers.steps.live.rank_log import GrowingFile, whole_lines

MIB = 1 << 20


@pytest.fixture
def gone():
    """Return the id of a process that no longer exists."""
    with subprocess.Popen(["true"]) as process:
        return process.pid


def test_only_what_is_new_is_read(tmp_path):
    """A line that is being written waits for its end; a file that replaced another one is read from its start."""
    path = tmp_path / "log"
    path.write_bytes(b"one\ntw")
    log = GrowingFile(path, whole_lines)
    assert log.fresh() == b"one\n"
    assert log.fresh() == b""
    with path.open("ab") as file:
        file.write(b"o\n")
    assert (log.fresh(), log.generation) == (b"two\n", 1)
    path.rename(tmp_path / "earlier")
    path.write_bytes(b"new one\n")
    assert (log.fresh(), log.generation) == (b"new one\n", 2)
    path.unlink()
    assert log.fresh() == b""


def test_of_a_long_log_the_head_and_the_end_are_read(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"head\n" + b"".join(b"%06d\n" % i for i in range(1000)))
    read = GrowingFile(path, whole_lines, latest=70).fresh().splitlines()
    assert (read[0], read[-1], len(read)) == (b"head", b"000999", 11)


def test_steps_speed_memory_and_what_is_left(tmp_path):
    manifest(tmp_path, flops_per_token=10**6, peak_flops=10**10)
    follower = Follower(tmp_path)
    assert follower.look().status == "waiting"
    ranks = [FakeRank(tmp_path, rank) for rank in range(2)]
    for rank in ranks:
        rank.begin()
        rank.step(1, loss=6.5, limit_bytes=400 * MIB)
        rank.step(2, loss=6.25, limit_bytes=400 * MIB)
    now = follower.look()
    assert (now.status, now.step, now.steps, now.world_size) == ("running", 2, 20, 2)
    assert (now.recent[-1].loss, now.tokens_per_s, now.step_s, now.remaining_s) == (6.25, 500, 1, 18)
    assert now.utilisation == pytest.approx(0.05)
    assert now.phases == {"bwd": 0.4, "fwd": 0.1}
    assert [one.headroom_bytes for one in now.ranks] == [300 * MIB] * 2


def test_the_time_of_recorders_is_told_apart(tmp_path):
    """Of 2 s, 1 s went into a snapshot: the phases are shares of the other second, and so is the step's duration."""
    manifest(tmp_path)
    rank = FakeRank(tmp_path, 0)
    rank.begin()
    rank.step(1, dur_ns=2 * 10**9, phases={"fwd": 10**8, "bwd": 4 * 10**8, "snapshot": 10**9})
    now = Follower(tmp_path).look()
    assert (now.phases, now.recorders, now.recent[-1].dur_s) == ({"bwd": 0.4, "fwd": 0.1}, 0.5, 1.0)


def test_growing_memory_meets_its_limit(tmp_path):
    """Memory begins at 100 MiB and grows by 20 MiB a step, so it exceeds 400 MiB in step 17."""
    manifest(tmp_path)
    rank = FakeRank(tmp_path)
    rank.begin()
    for step in range(1, 9):
        rank.step(step, memory=(80 + 20 * step) * MIB, limit_bytes=400 * MIB)
    now = Follower(tmp_path).look()
    assert (now.ranks[0].growth_bytes, now.ranks[0].oom_step) == (20 * MIB, 17)
    assert "steps.memory_growth" in [finding.id for finding in now.findings]


def test_a_straggler_appears(tmp_path):
    """The findings are those of `workbench steps` for the same steps."""
    manifest(tmp_path)
    ranks = [FakeRank(tmp_path, rank) for rank in range(2)]
    for rank in ranks:
        rank.begin()
        for step in range(1, 9):
            rank.step(step, fwd=1e8 if step < 4 or rank.rank == 0 else 9e8)
    [found] = Follower(tmp_path).look().findings
    assert (found.id, found.ranks, found.step) == ("steps.straggler", [1], 4)


def test_a_stall_counts_down(tmp_path):
    """Dumps are written after 0.4 of the timeout, and collectives give up after all of it."""
    manifest(tmp_path)
    ranks = [FakeRank(tmp_path, rank) for rank in range(2)]
    for rank in ranks:
        rank.begin()
        rank.step(1)
        rank.step(2)
    ranks[0].beat(3, "bwd", ago_s=10)
    ranks[1].beat(3, "fwd", ago_s=12)
    now = Follower(tmp_path).look()
    assert (now.status, now.stall.ranks, now.stall.phase) == ("stalled", [0, 1], "fwd")
    assert now.stall.dumps_in_s == pytest.approx(28, abs=1)
    assert now.stall.ends_in_s == pytest.approx(88, abs=1)


def test_a_rank_dies_and_the_job_starts_again(tmp_path, gone):
    manifest(tmp_path)
    dead, alive = FakeRank(tmp_path, 0, pid=gone), FakeRank(tmp_path, 1)
    for rank in (dead, alive):
        rank.begin()
        rank.step(1, loss=6.0)
        rank.step(2, loss=5.0)
    follower = Follower(tmp_path)
    now = follower.look()
    assert (now.status, [one.state for one in now.ranks]) == ("losing ranks", ["gone", "running"])
    dead.pid = os.getpid()
    for rank in (dead, alive):
        rank.begin(attempt=1)
        rank.step(1, loss=5.5)
    now = follower.look()
    assert (now.status, now.attempt, now.step, now.recent[-1].loss) == ("running", 1, 1, 5.5)


def test_how_a_job_ended(tmp_path, gone):
    manifest(tmp_path)
    rank = FakeRank(tmp_path)
    rank.begin()
    rank.step(1)
    follower = Follower(tmp_path)
    rank.beat(20, "done")
    assert follower.look().status == "completed"
    rank.pid = gone
    rank.begin()
    rank.beat(1, "fwd", ago_s=40)
    assert follower.look().status == "failed"
    manifest(tmp_path, status="interrupted", ended_ns=time.time_ns())
    assert follower.look().status == "interrupted"


def test_files_of_an_earlier_job_are_passed_by(tmp_path):
    manifest(tmp_path, status="completed", ended_ns=time.time_ns())
    FakeRank(tmp_path).begin()
    assert Follower(tmp_path, since=time.time() + 1).look().status == "waiting"


def test_hostile_lines_are_passed_by(tmp_path):
    manifest(tmp_path, world_size="many", config=[1])
    rank = FakeRank(tmp_path)
    rank.begin()
    rank.step(1, loss={"a": 1}, limit_bytes="all")
    with rank.log.open("ab") as file:
        file.write(
            b'\xff{"step"\n[1]\n{"step": "x"}\n{"step": 2, "dur_ns": "long", "phases": 3, "memory_bytes": 1e30}\n'
        )
    now = Follower(tmp_path).look()
    assert (now.step, now.world_size) == (2, 1)


def record(name, step=None, value=None, event=None):
    told = {"global_rank": 3, "host_name": socket.gethostname(), "pid": os.getpid(), "time_us": time.time_ns() // 1000}
    return json.dumps(told | {"log_type_name": name, "step": step, "value": value, "event_name": event}) + "\n"


def board(folder):
    return pytest.importorskip("torch.utils.tensorboard").SummaryWriter(folder)


TOLD = {
    "loss_metrics/global_avg_loss": 4.5,
    "memory/max_active(GiB)": 2.0,
    "memory/max_active(%)": 25.0,
    "mfu(%)": 40.0,
}


def test_a_job_of_torchtitans(tmp_path):
    """Steps and phases come from its structured log; loss, speed and memory from its TensorBoard file."""
    with board(tmp_path / "tb" / "20261121-1010" / "rank_3") as writer:
        for tag, value in TOLD.items():
            writer.add_scalar(tag, value, 1)
    folder = tmp_path / "structured_logs"
    folder.mkdir()
    log = folder / "training.global_rank_3.20261121-101010-abcdef.jsonl"
    log.write_text(
        record("training_start")
        + record("metric_value", 1, value=512.0, event="local_valid_tokens")
        + record("fwd_bwd_end", 1, value=600.0)
        + record("optim_end", 1, value=200.0)
        + record("step_end", 1, value=1000.0)
        + record("fwd_bwd_start", 2)
    )
    now = Follower(tmp_path).look()
    assert (now.status, now.world_size, now.step, now.phases) == ("running", 4, 1, {"fwd_bwd": 0.6, "optim": 0.2})
    assert (now.recent[0].loss, now.ranks[0].phase) == (4.5, "fwd_bwd")
    assert (now.ranks[0].memory_bytes, now.ranks[0].limit_bytes) == (2 << 30, 8 << 30)
    assert now.utilisation == pytest.approx(0.4)


def test_a_structured_log_that_grows(tmp_path):
    """The records of one step are read in several updates."""
    folder = tmp_path / "structured_logs"
    folder.mkdir()
    records = [
        record("fwd_bwd_end", 1, value=600.0),
        record("optim_end", 1, value=1.0),
        record("step_end", 1, value=900.0),
    ]
    follower, seen = Follower(tmp_path), []
    for text in [*records, *(one.replace('"step": 1', '"step": 2') for one in records)]:
        with (folder / "training.global_rank_0.20261121-101010-abcdef.jsonl").open("a") as log:
            log.write(text)
        seen.append(follower.look().step)
    assert seen == [0, 0, 1, 1, 1, 2]


def test_an_event_file_that_grows(tmp_path):
    """Older torchtitan versions write nothing else, so a step's time is that since the step before."""
    follower = Follower(tmp_path)
    with board(tmp_path / "tb" / "20261121-1010") as writer:
        for step in (10, 20, 30):
            writer.add_scalar("loss_metrics/global_avg_loss", 1 / step, step, walltime=1e9 + step)
            writer.add_scalar("throughput(tps)", 700, step, walltime=1e9 + step)
            writer.flush()
            now = follower.look()
    assert [(one.step, one.loss, one.dur_s) for one in now.recent] == [
        (10, pytest.approx(0.1), 0), (20, pytest.approx(0.05), 1), (30, pytest.approx(1 / 30), 1),
    ]  # fmt: skip
    assert now.tokens_per_s == 700


def test_the_log_of_another_trainer_is_followed_and_its_failure_is_evidence(tmp_path):
    log = tmp_path / "train.jsonl"
    log.write_text("".join(f'{{"step": {n}, "loss": {3 / n:.3f}, "step_time_s": 0.2}}\n' for n in range(1, 12)))
    now = Follower(tmp_path).look()
    assert (now.status, now.step, now.world_size) == ("running", 11, 1)
    assert now.recent[-1].loss == pytest.approx(3 / 11, abs=1e-3)
    assert now.step_s == pytest.approx(0.2)
    assert now.evidence == ()
    (tmp_path / "stderr.log").write_text('Traceback (most recent call last):\n  File "a.py", line 1\nValueError: x\n')
    assert [Path(path).name for path, _ in Follower(tmp_path).look().evidence] == ["stderr.log"]
    os.utime(log, (1, 1))
    os.utime(tmp_path / "stderr.log", (1, 1))
    assert Follower(tmp_path).look().status == "unknown"
