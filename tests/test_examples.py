"""The examples run unchanged, by their two lines and by the launcher, and both record hangs and steps."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ranks
from analyzers.run import Kind, discover

EXAMPLES = Path(__file__).parents[1] / "examples"
NEEDS = {
    "plain_pytorch": "torch",
    "recipe_class": "torch",
    "lightning_trainer": "lightning",
    "hf_trainer": "transformers",
    "accelerate_loop": "accelerate",
    "deepspeed_loop": "deepspeed",
}
MAKE_NO_LOADER = ("plain_pytorch", "deepspeed_loop")


def test_every_example_is_tried():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(NEEDS)


def check_what_is_recorded(name: str, folder: Path):
    """Each rank has its steps with their phases, a heartbeat that says it ended well, and its process groups."""
    hearts = sorted((folder / "steps").glob("heartbeat_*.bin"))
    assert [heart.name for heart in hearts] == ["heartbeat_0.bin", "heartbeat_1.bin"]
    assert all(b"done" in heart.read_bytes() for heart in hearts)
    assert len(discover(folder).of(Kind.GROUPS)) == 2
    expected = {"bwd", "optim"} | ({"data_wait"} if name not in MAKE_NO_LOADER else set())
    for rank in (0, 1):
        _, *steps = map(json.loads, (folder / "steps" / f"rank_{rank}.jsonl").read_text().splitlines())
        assert [step["step"] for step in steps] == [1, 2, 3]
        # The first batch may be fetched before the first step is known.
        assert expected <= set(steps[1]["phases"])


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDS)
def test_an_example_trains_with_recorders(name, tmp_path):
    if importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}")
    script, outputs = str(EXAMPLES / f"{name}.py"), str(tmp_path / "outputs")
    ended = ranks.run_job(script, ["--steps", "3", "--outputs", outputs], tmp_path / "logs", 2)
    assert ended.returncode == 0, ended.output
    check_what_is_recorded(name, tmp_path / "outputs")


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDS)
def test_the_launcher_records_an_example_in_its_own_folder(name, tmp_path):
    """The two lines of the script add nothing then."""
    if importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}")
    words = ["launch", "--nproc", "2", "--no-watch", "--", sys.executable, str(EXAMPLES / f"{name}.py"), "--steps", "3"]
    ended = subprocess.run(
        [sys.executable, "-m", "workbench", *words, "--outputs", "of_the_script"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    check_what_is_recorded(name, tmp_path / "outputs")
    assert not (tmp_path / "of_the_script" / "steps").exists()
