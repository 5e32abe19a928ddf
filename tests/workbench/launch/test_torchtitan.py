"""The options of torchtitan 0.2 and 0.3, which version is installed, and which packages are incompatible with it."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from analyzers.errors import InputError, MissingExtra
from workbench.errors import UsageProblem
from workbench.launch.plan import Request, plan
from workbench.launch.run_manifest import set_aside_earlier_run
from workbench.launch.torchtitan import (
    Form,
    Torchtitan,
    converted,
    installed_torchtitan,
    missing_conflict,
    missing_packages,
    old_torch,
    torchtitan_options,
    wrong_packages,
)
from workbench.recorders.startup.settings import Settings

OLD, NEW = Torchtitan("0.2.2", Form.TOML), Torchtitan("0.3.0", Form.REGISTRY)
LLAMA = {"module": "llama3", "config": "llama3_debugmodel"}
TYRO = """noise
╭─ Unrecognized options ─────────────────────╮
│ Unrecognized options: --training.stepz, 2  │
│ ────────────────────────────────────────── │
│ Perhaps you meant:                         │
│     --training.steps INT                   │
│         How many train steps to run        │
╰────────────────────────────────────────────╯
"""
"""What torchtitan 0.2.2 prints for a wrong option."""


@pytest.fixture
def toml(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.toml").write_text("[training]\nsteps = 3\n")
    return Path("x.toml")


@pytest.mark.usefixtures("toml")
@pytest.mark.parametrize(
    ("found", "given", "options"),
    [
        (OLD, {"config": "x.toml"}, "--job.config_file x.toml"),
        (OLD, {"overrides": ("--training.steps", "2")}, "--training.steps 2"),
        (OLD, {"overrides": ("--dump-folder=a", "--profiler.profile_freq", "5")},
         "--job.dump_folder=a --profiling.profile_freq 5"),
        (NEW, LLAMA, "--module llama3 --config llama3_debugmodel"),
        (NEW, LLAMA | {"overrides": ("--job.dump_folder", "a", "--model.hf-assets-path=t")},
         "--module llama3 --config llama3_debugmodel --dump_folder a --hf_assets_path=t"),
    ],
)  # fmt: skip
def test_options_in_the_form_of_the_version(found, given, options):
    words, notes = torchtitan_options(Request(trainer="torchtitan", **given), found)
    assert words == tuple(options.split())
    written = given.get("overrides", ())
    assert len(notes) == sum(word.startswith("--") and word.split("=")[0] not in options for word in written)


@pytest.mark.usefixtures("toml")
@pytest.mark.parametrize(
    ("found", "given", "error", "hint"),
    [
        (OLD, LLAMA, "0.2.2 has no --module", "--config FILE.toml"),
        (OLD, {"config": "none.toml"}, "none.toml: no such file", "TOML"),
        (NEW, {"config": "x.toml"}, "0.3.0 reads no TOML file: x.toml", "--module llama3"),
        (NEW, {"overrides": ("--job.config-file=x.toml",)}, "reads no TOML file", "torchtitan<0.3"),
        (NEW, {"config": "llama3_debugmodel"}, "needs --module and --config", "--module llama3"),
        (NEW, {}, "needs --module and --config", "--module llama3"),
        (OLD, {"incident": "oom"}, "--incident oom breaks our own trainer", "leave out"),
    ],
)
def test_a_form_of_another_version_is_refused(found, given, error, hint):
    with pytest.raises(UsageProblem) as raised:
        torchtitan_options(Request(trainer="torchtitan", **given), found)
    assert error in raised.value.message
    assert hint in raised.value.hint


def test_the_form_is_read_from_the_files(tmp_path):
    assert installed_torchtitan([str(tmp_path)]) is None
    package = tmp_path / "torchtitan"
    (package / "models" / "llama3").mkdir(parents=True)
    (package / "__init__.py").touch()
    assert installed_torchtitan([str(tmp_path)]).form is Form.TOML
    (package / "models" / "llama3" / "config_registry.py").touch()
    assert installed_torchtitan([str(tmp_path)]).form is Form.REGISTRY


@pytest.mark.skipif(find_spec("torchtitan") is not None, reason="torchtitan is installed")
def test_without_torchtitan_the_launcher_says_how_to_install_it():
    with pytest.raises(MissingExtra, match="torchtitan is not installed"):
        plan(Request(trainer="torchtitan"))


def test_an_old_torch_is_told_with_the_line_that_mends_it(monkeypatch):
    monkeypatch.setattr("workbench.launch.torchtitan.package_version", lambda _: "2.13.0+cpu")
    (conflict,) = old_torch(NEW, ())
    assert conflict.title == "torchtitan 0.3.0 needs torch 2.14 or newer; this is torch 2.13.0+cpu"
    assert (conflict.command, conflict.prevents_training) == ("pip install 'torch>=2.14'", True)
    assert not list(old_torch(NEW, ("--parallelism.spmd-backend=partial_dtensor",)))
    assert not list(old_torch(OLD, ()))
    monkeypatch.setattr("workbench.launch.torchtitan.package_version", lambda _: "2.15.0")
    assert not list(old_torch(NEW, ()))


def test_missing_and_wrong_packages():
    declared = ["numpy>=1", "msgspec<0.1,>=0.0.1", "no-such-package>=0.8.0", "other-one; extra == 'dev'"]
    declared += ["for-windows; sys_platform == 'win32'", "pandas!=0.*"]
    missing = [each for each in missing_packages(declared) if each != "triton"]
    assert missing == ["no-such-package>=0.8.0"]
    assert missing_conflict(OLD, [*missing, "triton"]).command == "pip install 'no-such-package>=0.8.0' triton"
    (wrong,) = wrong_packages(OLD, declared)
    assert wrong.command == "pip install 'msgspec<0.1,>=0.0.1'"


@pytest.mark.parametrize(
    ("answer", "kind", "error", "hint"),
    [
        ({"failed": "options"}, UsageProblem, "Unrecognized options: --training.stepz, 2",
         "did you mean --training.steps?"),
        ({"failed": "import", "name": "triton.language", "message": "No module named 'triton.language'"}, InputError,
         "cannot be imported", "pip install triton"),
        ({"failed": "import", "name": "torch", "message": "cannot import name 'x' from 'torch'"}, InputError,
         "with torch", "torch==2.13.*"),
        ({"failed": "config", "message": "ValueError: no y"}, UsageProblem, "made no configuration: ValueError: no y",
         "--dry-run"),
    ],
)  # fmt: skip
def test_what_torchtitan_does_not_accept(answer, kind, error, hint):
    with pytest.raises(kind) as raised:
        converted(OLD, json.dumps(answer), TYRO)
    assert error in raised.value.message
    assert hint in raised.value.hint


def test_files_of_an_earlier_job_are_set_aside_with_torchtitans_own(tmp_path):
    (tmp_path / "run.json").write_text('{"schema": "workbench.run/1", "status": "completed", "started_ns": 0}')
    for name in ("comm_traces", "tb", "checkpoint"):
        (tmp_path / name).mkdir()
    set_aside_earlier_run(tmp_path, ("comm_traces",))
    assert {path.name for path in tmp_path.iterdir()} == {"tb", "checkpoint", "previous"}


def test_settings_of_the_start_up_hook():
    given = Settings.of({"folder": "out", "train_timeout_s": 20.0, "torchtitan": True, "root": "/x"})
    assert (given.train_timeout_s, given.init_timeout_s, given.torchtitan, given.record) == (20.0, None, True, True)
