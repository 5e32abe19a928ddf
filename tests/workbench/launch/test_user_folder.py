"""Our commands and recorders work in a folder whose modules have the names of ours, and never import those modules."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from workbench import python_path
from workbench.launch.plan import Request, plan
from workbench.package_clashes import clashes
from workbench.python_path import PACKAGE_ROOT, put_own_packages_first, search_path

ROOT = Path(__file__).parents[3]
MODULES = ("trainer.py", "analyzers.py", "steps.py", "memory.py", "recorders.py", "workbench_config/__init__.py")
MODULE = """
import pathlib, sys
MINE = True
with pathlib.Path({folder!r}, "imported.txt").open("a") as file:
    print(__name__, sys.argv[0], file=file)
"""
REGISTRY = """
from mine import STEPS
from trainer.models.llama3.config_registry import llama3_debugmodel

def tiny():
    config = llama3_debugmodel()
    config.training.steps = STEPS
    config.training.seq_len = 64
    return config
"""
SCRIPT = """
import torch
import torch.distributed as dist
from workbench import recorders
import analyzers, memory, steps, trainer, workbench_config

dist.init_process_group("gloo")
attached = recorders.start("attached")
for _ in range(3):
    dist.all_reduce(torch.ones(4))
assert all(module.MINE for module in (analyzers, memory, steps, trainer, workbench_config))
if dist.get_rank() == 0:
    assert attached.flight.ask("asked", "by a test")
dist.barrier()
attached.close()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Fixture: a user's folder with modules that have our names, a configuration, and a script."""
    folder = tmp_path_factory.mktemp("user")
    content = {name: MODULE.format(folder=str(folder)) for name in MODULES}
    content |= {"mine.py": "STEPS = 3", "models/config_registry.py": REGISTRY, "script.py": SCRIPT}
    for name, text in content.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the user's folder; our commands must not import a module of the user."""
    (folder / "imported.txt").unlink(missing_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder, env=environment | {"OMP_NUM_THREADS": "1"} | variables,
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip


def imported(folder: Path) -> list[str]:
    """Return the user's modules that were imported, each with the program that imported it."""
    path = folder / "imported.txt"
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(scope="module")
def trained(folder) -> subprocess.CompletedProcess[str]:
    """Fixture: two ranks train three steps with the user's configuration, with the folder also in PYTHONPATH."""
    ended = run(folder, "workbench", "launch", "--module", "models", "--config", "tiny", "--nproc", "2", PYTHONPATH=".")
    assert ended.returncode == 0, ended.stderr
    assert imported(folder) == []
    return ended


@pytest.mark.slow
def test_launch_trains_with_our_trainer_and_the_users_configuration(folder, trained):
    manifest = json.loads((folder / "outputs" / "run.json").read_text())
    assert (manifest["status"], manifest["last_step"], manifest["world_size"]) == ("completed", 3, 2)
    assert "warning: PYTHONPATH=. hides workbench's package `trainer`" in trained.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", [("inspect", "outputs"), ("steps", "outputs"), ("doctor",)])
@pytest.mark.usefixtures("trained")
def test_a_report_is_made_in_the_users_folder(folder, command):
    ended = run(folder, "workbench", *command, "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["verdict"]["status"] == "ok"
    assert imported(folder) == []


@pytest.mark.slow
def test_estimate_rehearses_our_trainer(folder):
    ended = run(folder, "workbench", "estimate", "--module", "models", "--config", "tiny", "--nproc", "2", "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["data"]["world_size"] == 2
    assert imported(folder) == []


@pytest.mark.slow
def test_recorders_attach_to_a_script_beside_modules_of_our_names(folder):
    """The script imports its own modules; the recorders and their collector import none of these."""
    ended = run(folder, "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "script.py")
    assert ended.returncode == 0, ended.stderr
    assert all((folder / "attached" / "dumps" / f"rank_{rank}").exists() for rank in (0, 1))
    by_script = {f"{name} script.py" for name in ("analyzers", "memory", "steps", "trainer", "workbench_config")}
    assert {line.replace(str(folder) + "/", "") for line in imported(folder)} == by_script


def test_doctor_names_what_hides_our_packages(folder, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.chdir(folder)
    named = {(finding.id, finding.severity.value) for finding in clashes()}
    assert {("doctor.python_path", "warning"), ("doctor.module_here", "info")} <= named


def test_another_distribution_with_our_name_is_named(tmp_path, monkeypatch):
    """PyPI has a package `trainer` that is not ours."""
    info = tmp_path / "coqui_trainer-0.3.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: coqui-trainer\nVersion: 0.3.1\n")
    (info / "top_level.txt").write_text("trainer\n")
    monkeypatch.syspath_prepend(tmp_path)
    [clash] = [finding for finding in clashes() if finding.id == "doctor.same_package"]
    assert clash.title == "coqui-trainer 0.3.1 and torch-workbench both install a package named `trainer`"
    assert "pip uninstall coqui-trainer" in clash.next


def test_the_users_folders_are_searched_last(folder, monkeypatch):
    other = str(folder / "models")
    monkeypatch.setattr(sys, "path", [str(folder), other, str(PACKAGE_ROOT), "/lib"])
    put_own_packages_first()
    assert sys.path == [other, str(PACKAGE_ROOT), "/lib", str(folder)]


def test_a_module_of_the_user_is_launched_with_its_own_folder_first(folder, monkeypatch):
    """Our packages come last in the search path; Python's safe path would leave out the user's folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", "lib")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(folder))])
    planned = plan(Request(trainer="mine"))
    assert (planned.module, planned.environment["PYTHONPATH"]) == ("mine", f"lib{os.pathsep}{PACKAGE_ROOT}")
    assert "PYTHONSAFEPATH" not in planned.environment


@pytest.mark.parametrize(("given", "expected"), [("", None), ("lib", None), ("user", "site-packages:user")])
def test_an_installed_package_comes_before_a_folder_that_hides_it(tmp_path, monkeypatch, given, expected):
    """If nothing hides our packages, site-packages stay last: they may have outdated copies of the standard library."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "trainer.py").touch()
    monkeypatch.setattr(python_path, "PACKAGE_ROOT", Path("site-packages"))
    monkeypatch.setenv("PYTHONPATH", given)
    assert search_path().get("PYTHONPATH") == expected


def test_every_process_of_ours_has_a_safe_path():
    """Only the launcher starts modules of the user; it and the scheduler's job set their search path themselves."""
    own = [path for house in ("workbench", "analyzers", "trainer") for path in (ROOT / house).rglob("*.py")]
    unsafe = {
        path.relative_to(ROOT).as_posix() for path in own if re.search(r'executable[^"]*"-(u|m)"', path.read_text())
    }
    assert unsafe == {"workbench/launch/plan.py", "workbench/launch/scheduler.py"}
