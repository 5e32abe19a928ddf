"""Shells complete the names and values that the command knows, quickly, and leave names of files to the shell."""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.config.registry import models
from trainer.plan.candidates import SPEEDS
from workbench.command_options.options import INCIDENTS, MODELS, PLANNED_DEVICES

SHARE = Path(__file__).parents[3] / "share"
BASH = SHARE / "bash-completion" / "completions" / "workbench"
FISH = SHARE / "fish" / "vendor_completions.d" / "workbench.fish"
HOSTILE = "a\\$(touch pwned)"


def environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def completed_by_bash(words, folder):
    """Return what an interactive bash offers for the last of `words`, which it has already split as it does."""
    listed = " ".join(f"'{word}'" for word in words)
    script = f"source '{BASH}'; COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _workbench workbench"
    command = ["bash", "--norc", "-i", "-c", f"{script}; printf '%s\\n' \"${{COMPREPLY[@]}}\""]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=folder, env=environment(), stdin=subprocess.DEVNULL
    )
    return set(ended.stdout.split())


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("ins",), {"inspect"}),
        (("inspect", "--form"), {"--format"}),
        (("inspect", "--format", "=", "j"), {"json"}),
        (("inspect", "--format", "="), {"text", "json", "markdown", "html"}),
        (("demo", "straggler_"), {"straggler_data", "straggler_gc"}),
        (("launch", "--nproc", "2", "--incident", "mis"), {"mismatch_shape", "mismatch_type"}),
        (("launch", "--scheduler", "s"), {"slurm"}),
        (("plan", "--device", "h"), {"h100", "h200"}),
        (("config", "ex"), {"explain"}),
        (("schema", "me"), {"memory"}),
        (("inspect", ""), set()),
        (("inspect", "--output", ""), set()),
    ],
    # In the order of the words, as a set has another one in each process.
    ids=lambda words: " ".join(sorted(words)),
)
def test_bash_offers_what_the_command_knows(words, offered, tmp_path):
    """It has nothing to say about files, so that bash completes and quotes their names itself."""
    (tmp_path / HOSTILE).touch()
    assert completed_by_bash(("workbench", *words), tmp_path) == offered


def test_a_completion_is_quick(tmp_path):
    """It takes 0.2 s of processor time; the limit leaves room for a machine that does other things."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    completed_by_bash(("workbench", "demo", "st"), tmp_path)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.6


def test_no_file_name_reaches_the_code_that_zsh_evaluates(tmp_path):
    (tmp_path / HOSTILE).touch()
    asked = {"_WORKBENCH_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "workbench inspect "}
    command = [Path(sys.executable).parent / "workbench"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=environment() | asked)
    assert ended.stdout.strip() == "_files"


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_offers_values_and_files(tmp_path):
    (tmp_path / "plain.json").touch()

    def offered(line):
        script = f"source '{FISH}'; complete -C '{line}'"
        command = ["fish", "--no-config", "-c", script]
        ended = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=environment())
        return [row.partition("\t")[0] for row in ended.stdout.splitlines()]

    assert offered("workbench demo stuck_") == ["stuck_gil", "stuck_sleep"]
    assert offered("workbench inspect pl") == ["plain.json"]


def test_the_values_are_those_that_the_commands_take():
    assert set(models()) == set(MODELS)
    assert set(SPEEDS) == set(PLANNED_DEVICES)
    assert len(set(INCIDENTS)) == len(INCIDENTS)
