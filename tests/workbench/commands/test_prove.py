"""Test `workbench inspect RUN --prove`: which advice is applied, and why none is if no setting would help."""

import signal
import time
from pathlib import Path
from types import SimpleNamespace

import command_line
import pytest

from analyzers.errors import InputError
from analyzers.memory.model import OomPattern, Remedy
from analyzers.run import discover
from analyzers.store import Options
from trainer.config import load
from workbench.commands.prove import rerun
from workbench.commands.prove.command import (
    Prediction,
    changes,
    decided,
    halved,
    proof_report,
    prove,
    rehearsed,
    scaled,
)
from workbench.commands.prove.permission import Permission
from workbench.commands.prove.recorded_run import RecordedRun, batch_flag, changed_command, launch_options
from workbench.commands.prove.rerun import configuration
from workbench.documents import Basis, Considered, ProofData, RankMemory, Rerun, TrainerEstimate
from workbench.errors import UsageProblem
from workbench.present.tables.estimate import proof_tables

FIXTURES = Path(__file__).parents[2] / "fixtures"
CONFIG = {
    "training": {"local_batch_size": 4, "global_batch_size": -1, "seq_len": 128, "dtype": "float32"},
    "activation_checkpoint": {"mode": "none"},
}


def run_with(categories, config=CONFIG, **mesh):
    """Return a recorded run whose memory at the failure had these categories."""
    oom = SimpleNamespace(categories=categories, frames=[], pattern=OomPattern.UNKNOWN)
    manifest = {"config": config, "mesh": {"dp_replicate": 1, "dp_shard": 1} | mesh}
    return SimpleNamespace(manifest=manifest, device=SimpleNamespace(oom=oom))


def test_a_batch_that_no_setting_names_is_not_mended_by_one():
    """The failing step of the fixture had a batch 64 times as large as those before it."""
    report = prove(discover(FIXTURES / "oom_2ranks"), Options(cache=False), Permission())
    assert report.verdict.kind == "not_applied"
    assert "times as large" in report.data.not_applied
    assert report.data.rerun is None


def test_a_run_whose_memory_sufficed_has_nothing_to_prove():
    with pytest.raises(InputError, match="no allocation failed"):
        prove(discover(FIXTURES / "leak_4ranks"), Options(cache=False), Permission())


def test_the_first_change_is_the_advice_of_the_finding():
    """If activations fill the memory, it is recomputation; if optimizer state does, fewer copies and smaller types."""
    first = next(changes(run_with({"activations": 9, "optimizer_state": 1})))
    assert first == {"activation_checkpoint.mode": "full"}
    tried = list(changes(run_with({"activations": 1, "optimizer_state": 9}, dp_replicate=2)))
    assert tried[0]["parallelism.data_parallel_shard_degree"] == 2
    assert tried[1] == {"training.dtype": "bfloat16"}


def test_weights_in_bfloat16_compute_in_bfloat16_too():
    """Without FSDP the trainer refuses bfloat16 weights that compute in float32, and so did the whole proof."""
    config = CONFIG | {"training": CONFIG["training"] | {"mixed_precision_param": "float32"}}
    change = next(changes(run_with({"optimizer_state": 9}, config)))
    assert change == {"training.dtype": "bfloat16", "training.mixed_precision_param": "bfloat16"}


def test_the_failed_request_of_a_command_gives_a_lower_bound():
    """The part that half a batch would halve, and the failed request, are scaled: 90 + 40 - (60 + 40) * 3 / 4."""
    oom = SimpleNamespace(requested_bytes=40, allocated_bytes=90, device_free_bytes=5)
    device = SimpleNamespace(oom=oom, savings=[SimpleNamespace(remedy=Remedy.HALF_BATCH, of_bytes=60)])
    run = RecordedRun(Path(), {"command": ["train.py", "--batch-size", "8"]}, device, "memory.oom")
    assert scaled(run, {"--batch-size": 2}) == Prediction(55, None)


def test_a_change_that_the_trainer_refuses_is_left_out():
    def predict(change):
        if "a" in change:
            raise UsageProblem("no such setting", "choose another")
        return Prediction(900, 0.05)

    oom = SimpleNamespace(categories={}, frames=[], pattern=OomPattern.UNKNOWN)
    run = SimpleNamespace(manifest={}, device=SimpleNamespace(oom=oom), room_bytes=100, finding="memory.oom", limits={})
    data = decided(run, iter([{"a": 1}, {"b": 1}]), predict, None, Basis.REHEARSAL, None)
    assert [one.changes for one in data.considered] == [{"b": 1}]


def test_smaller_batches_keep_the_sequences_of_a_step():
    batches = [one for one in changes(run_with({"activations": 9}, dp_shard=2)) if "training.local_batch_size" in one]
    assert batches[0] == {"training.local_batch_size": 2, "training.global_batch_size": 8}
    assert {one["training.global_batch_size"] for one in batches} == {8}


@pytest.mark.parametrize(
    ("backend", "mesh", "window", "margin"),
    [
        ("nccl", {"dp_shard": 8}, "bwd", 0.05),
        ("gloo", {"dp_shard": 2}, "bwd", 0.15),
        ("gloo", {"dp_replicate": 2}, "eval", 0.05),
        ("gloo", {"tp": 2}, "bwd", 0.10),
        ("gloo", {"tp": 2}, "eval", 0.30),
        ("nccl", {"ep": 2}, "bwd", 0.06),
    ],
)
def test_the_margin_follows_from_the_mesh_and_what_gloo_may_keep(backend, mesh, window, margin):
    """Gloo may keep as many bytes of buffers again as the estimate counts as communication: here 100 of 1000."""
    rank = RankMemory(0, 2, 1000, window, {"communication": 100, "parameters": 900}, {window: 1000})
    estimate = TrainerEstimate(world_size=2, mesh=mesh, model="m", parameters=9, layers=1, assumptions=[], ranks=[rank])
    assert rehearsed(estimate, backend) == (1000, pytest.approx(margin))


@pytest.mark.parametrize(("margin", "fits"), [(0.05, 950), (0.3, 700), (None, 800)])
def test_the_margin_of_a_prediction_is_left_free(margin, fits):
    """Of a lower bound a fifth is left free."""
    assert Prediction(fits, margin).fits(1000)
    assert not Prediction(fits + 1, margin).fits(1000)


@pytest.mark.parametrize(
    ("measured", "words"), [(1005, "within the margin of 1 %"), (1020, "+2 %, more than the margin of 1 %")]
)
def test_the_report_says_whether_the_error_is_within_the_margin(measured, words):
    rerun = Rerun(folder="x", command=[], passed=True, steps=2, peak_bytes=measured)
    data = ProofData(
        finding="memory.oom", limits={}, room_bytes=2000, needed_bytes=None, basis=Basis.REHEARSAL,
        considered=[Considered(changes={"a.b": 1}, predicted_bytes=1000, fits=True)], rerun=rerun, not_applied="",
        margin=0.01,
    )  # fmt: skip
    device = SimpleNamespace(rank=0, oom=None, step=1)
    assert words in proof_report(SimpleNamespace(device=device), data).findings[0].why
    assert proof_tables(data)[0].rows[0][2] == "±1 %"


def test_a_lower_bound_is_reported_as_one():
    rerun = Rerun(folder="x", command=[], passed=True, steps=2, peak_bytes=1320)
    data = ProofData(
        finding="memory.oom", limits={}, room_bytes=2000, needed_bytes=None, basis=Basis.FAILED_REQUEST,
        considered=[Considered(changes={"--batch-size": 1}, predicted_bytes=1000, fits=True)], rerun=rerun,
        not_applied="",
    )  # fmt: skip
    device = SimpleNamespace(rank=0, oom=None, step=1)
    why = proof_report(SimpleNamespace(device=device), data).findings[0].why
    assert why.startswith("Predicted at least 1000 B, measured 1.3 KiB (+32 %);")
    assert proof_tables(data)[0].rows[0][2] == "at least"


@pytest.mark.parametrize(("measured", "kind"), [(400, "inconclusive"), (1700, "disproved")])
def test_a_failure_whose_tensors_had_room_says_nothing_on_the_advice(measured, kind):
    """Of 2000 bytes the tensors took 400: the rest of the process filled the memory."""
    rerun = Rerun(folder="x", command=[], passed=False, steps=5, peak_bytes=measured)
    data = ProofData(
        finding="memory.oom", limits={"data": 9000}, room_bytes=2000, needed_bytes=None, basis=Basis.FAILED_REQUEST,
        considered=[Considered(changes={"--batch-size": 1}, predicted_bytes=300, fits=True)], rerun=rerun,
        not_applied="",
    )  # fmt: skip
    run = SimpleNamespace(device=SimpleNamespace(rank=0, oom=None, step=1), limits=data.limits)
    report = proof_report(run, data)
    assert report.verdict.kind == kind
    assert (report.verdict.status == "unknown") == (kind == "inconclusive")
    assert ("MALLOC_MMAP_THRESHOLD_" in report.findings[0].next) == (kind == "inconclusive")


def test_a_command_is_ended_after_enough_steps(monkeypatch):
    """A user's command may run for days; the second run ends once it has shown its memory."""
    monkeypatch.setattr(rerun, "POLL_S", 0.1)
    asked = iter([False, True])
    # As in the background of a shell.
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        began = time.monotonic()
        assert rerun.run_limited(["sleep", "60"], {}, lambda: next(asked)) == 0
        assert time.monotonic() - began < 30
    finally:
        signal.signal(signal.SIGINT, usual)


def test_steps_of_an_earlier_run_are_not_counted(tmp_path):
    log = tmp_path / "steps" / "rank_0.jsonl"
    log.parent.mkdir()
    log.write_text("{}")
    written = log.stat().st_mtime
    assert rerun.is_logged_since(tmp_path, written - 1)
    assert not rerun.is_logged_since(tmp_path, written + 1)
    assert not rerun.is_logged_since(tmp_path / "none", 0)


@pytest.mark.parametrize(("number", "expected"), [(12, [6, 3]), (1, []), (8, [4, 2, 1])])
def test_halves_are_whole_numbers(number, expected):
    assert list(halved(number)) == expected


def test_the_second_run_has_the_changed_settings(tmp_path):
    """The trainer's own reader reads the settings that were written for the second run."""
    written = tmp_path / "proof.toml"
    sections = {"training": {"local_batch_size": 4, "seq_len": 64}, "optimizer": {"lr": 1e-08}}
    written.write_text(configuration(sections, {"training.local_batch_size": 2}, tmp_path))
    config = load(None, ["--job.config_file", str(written)])
    assert (config.training.local_batch_size, config.training.seq_len, config.optimizer.lr) == (2, 64, 1e-08)
    assert config.job.dump_folder == str(tmp_path)


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        (["python", "train.py", "--batch-size", "32"], "--batch-size"),
        (["train.py", "--per_device_train_batch_size=8", "--lr", "3"], "--per_device_train_batch_size"),
        (["train.py", "--bs", "2"], "--bs"),
        (["train.py", "--batch-size-of-eval", "8"], None),
        (["train.py", "--batch-size", "auto"], None),
        (["train.py", "--batch-size"], None),
        (["train.py", "--batch-size", "1"], None),
    ],
)
def test_a_batch_size_on_a_command_line(command, flag):
    named = batch_flag(command)
    assert (named[1] if named else None) == flag


def test_a_command_is_run_again_in_another_folder(tmp_path):
    old, new = tmp_path / "run", tmp_path / "run-proof"
    manifest = {
        "command": ["train.py", "--out", str(old / "x"), "--batch-size", "8"],
        "argv": ["workbench", "launch", "--nproc", "2", "--job.dump_folder", str(old), "--", "train.py"],
    }
    run = SimpleNamespace(manifest=manifest, folder=old, command=manifest["command"])
    assert changed_command(run, {"--batch-size": 4}, new) == ["train.py", "--out", str(new / "x"), "--batch-size", "4"]
    assert launch_options(run, new) == ["--nproc", "2", "--job.dump_folder", str(new)]
    manifest["argv"] = ["workbench", "launch", "--nproc", "2", "--job.dump_folder", "2", "--", "train.py"]
    assert launch_options(run, new) == ["--nproc", "2", "--job.dump_folder", str(new)]


@pytest.mark.parametrize("reaction", ["", "trap '' INT; "], ids=["ends", "ignores the interrupt"])
def test_a_second_run_that_does_not_end_is_ended_and_is_no_bug(monkeypatch, reaction):
    monkeypatch.setattr(rerun, "LONGEST_S", 0.5)
    monkeypatch.setattr(rerun, "WAIT_S", 0.5)
    began = time.monotonic()
    with pytest.raises(InputError, match="did not end within"):
        rerun.run_limited(["sh", "-c", f"{reaction}exec sleep 60"], {})
    assert time.monotonic() - began < 30


def test_a_run_that_failed_in_its_first_step_without_a_snapshot_is_told_what_is_missing(tmp_path):
    """Nothing was recorded but an empty step log: the answer names what a proof needs."""
    log = tmp_path / "steps" / "rank_0.jsonl"
    log.parent.mkdir()
    log.write_text('{"schema": "workbench.steps/1", "rank": 0, "world_size": 1}\n')
    ended = command_line.run("inspect", tmp_path, "--prove")
    assert ended.returncode == 3
    assert "error: --prove: no memory snapshot shows a failed allocation, and no step log" in ended.stderr
    assert "MemoryRecorder" in ended.stderr
