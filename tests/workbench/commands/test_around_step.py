"""Test `workbench inspect RUN --prove` for a NaN and a spike of the loss: where the second run begins, what it says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from analyzers.errors import InputError
from analyzers.parity.model import ValueKind
from analyzers.parity.report import Jump, Jumps
from ranks import ROOT
from trainer.config import load
from workbench.command_options.options import DocumentOptions, ReadOptions
from workbench.commands.analyse import prove_advice
from workbench.commands.prove.around_step import rerun_report, settings_around, starting_step
from workbench.commands.prove.permission import Permission
from workbench.commands.prove.rerun import configuration
from workbench.documents import SPIKE, RerunData

CONFIG = {
    "checkpoint": {"folder": "checkpoint"},
    "debug": {"seed": None},
    "training": {"steps": 100},
    "lr_scheduler": {"total_steps": None},
}
FIXTURES = Path(__file__).parents[2] / "fixtures"


def saved(folder, *steps):
    for step in steps:
        (folder / "checkpoint" / f"step-{step}").mkdir(parents=True)
        (folder / "checkpoint" / f"step-{step}" / ".metadata").touch()


def test_it_begins_at_the_last_checkpoint_that_leaves_steps_to_compare_with(tmp_path):
    saved(tmp_path, 10, 20, 30)
    (tmp_path / "checkpoint" / "step-25").mkdir()  # not complete
    manifest = {"config": CONFIG}
    assert starting_step(tmp_path, manifest, 31, 0) == (30, "")
    assert starting_step(tmp_path, manifest, 33, 4) == (20, "")
    assert starting_step(tmp_path, manifest, 12, 4) == (10, "")


def test_what_cannot_be_run_again_is_said(tmp_path):
    assert "no debug.seed" in starting_step(tmp_path, {"config": CONFIG}, 5, 0)[1]
    seeded = {"config": {**CONFIG, "debug": {"seed": 1}}}
    assert starting_step(tmp_path, seeded, 5, 0) == (0, "")
    assert "at most 500" in starting_step(tmp_path, seeded, 900, 0)[1]
    assert "recorders.check_finite" in starting_step(tmp_path, {"command": ["train.py"]}, 5, 0)[1]
    hosts = {**seeded, "hosts": {"0": "a", "1": "b"}}
    assert "2 hosts" in starting_step(tmp_path, hosts, 5, 0)[1]


def test_the_second_run_resumes_and_keeps_the_schedule(tmp_path):
    settings = settings_around(tmp_path, CONFIG, 20, 31, is_spike=True)
    path = tmp_path / "proof.toml"
    path.write_text(configuration({"training": {"steps": 100}}, settings, tmp_path / "proof"))
    config = load(None, ["--job.config_file", str(path)])
    assert (config.training.steps, config.lr_scheduler.total_steps) == (31, 100)
    assert (config.checkpoint.load_step, config.checkpoint.folder) == (20, str(tmp_path / "checkpoint"))
    assert (config.debug.record_values, config.debug.check_finite, config.checkpoint.load_only) == (True, False, True)


def data(jumps=None, **changes):
    told = {"recorded_loss": 9.0, "repeated_loss": 9.0, "reproduced": True, "steps_compared": 4, "first_compared": 8}
    batch = {"first_sequence": 96, "last_sequence": 103, "losses": {0: 3.0, 1: 9.0}}
    return RerunData(event=SPIKE, step=12, jumps=jumps, **{**told, **batch, **changes})


def jumps_at(step, forward=None):
    gradient = Jump(step=step, kind=ValueKind.GRADIENT, tensor="head.weight", norm=8.0, before=1.0)
    return Jumps(step=step, forward=forward, backward=None, gradient=gradient, largest=gradient, share=0.5)


OUTPUT = Jump(step=12, kind=ValueKind.ACTIVATION, tensor="layers.2", norm=8.0, before=1.0)


@pytest.mark.parametrize(
    ("jumps", "kind", "words"),
    [
        (jumps_at(11), "rerun.gradient_jump", "Clip gradients"),
        (jumps_at(12, OUTPUT), "rerun.gradient_jump", "Lower the learning rate"),
        (jumps_at(12), "rerun.gradient_jump", "sequences 96 to 103"),
        (None, "rerun.batch", "sequences 96 to 103"),
    ],
)
def test_the_advice_follows_from_what_jumped_first(jumps, kind, words):
    report = rerun_report(data(jumps), [])
    [finding] = report.findings
    assert (finding.id, finding.ranks, report.verdict.kind) == (kind, [1], "located")
    assert words in finding.next


def test_another_loss_in_the_second_run_is_unknown():
    report = rerun_report(data(repeated_loss=3.0, reproduced=False), [])
    assert (report.verdict.status, report.verdict.kind) == ("unknown", "not_located")
    assert "did not reproduce the loss of step" in report.findings[0].title
    assert report.findings[0].why.endswith("data and settings gave a different result.")
    assert "faulty memory" in report.findings[0].next


def test_too_few_steps_before_the_spike_ask_for_an_earlier_checkpoint():
    [finding] = rerun_report(data(steps_compared=1), []).findings
    assert finding.next.endswith("Or look at how the loss is computed.")


def test_a_run_without_anything_broken_is_refused():
    with pytest.raises(InputError, match="no step log a NaN or a spike"):
        prove_advice([FIXTURES / "healthy_2ranks" / "steps"], ReadOptions(), DocumentOptions(), None, Permission())


@pytest.mark.slow
def test_a_nan_is_found_from_the_last_checkpoint(tmp_path):
    """A real run whose model returns NaN from step 4 on, with a checkpoint after step 2."""
    flags = ("--faults.name", "nan", "--faults.step", "4", "--training.steps", "5", "--checkpoint.enable",
             "--checkpoint.interval", "2", "--profiling.no_enable_profiling",
             "--profiling.no_enable_memory_snapshot")  # fmt: skip
    run = tmp_path / "run"
    launch = ("launch", "--no-watch", "--config", str(ROOT / "configs" / "debug_model.toml"), "--nproc", "1")
    for words in (
        (*launch, "--job.dump_folder", str(run), *flags),
        ("inspect", str(run), "--prove", "--yes", "--json"),
    ):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "workbench", *words], capture_output=True, text=True, check=True
        )
    report = json.loads(done.stdout)
    assert (report["verdict"]["class"], report["data"]["checkpoint_step"]) == ("located", 2)
    assert report["data"]["reproduced"]
    [finding] = report["findings"]
    assert (finding["id"], finding["step"]) == ("values.not_finite", 4)
    assert "faults.py" in finding["evidence"][0]["line"]
