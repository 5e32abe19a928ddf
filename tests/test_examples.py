"""The examples run unchanged, and attach the recorders."""

import importlib.util
from pathlib import Path

import pytest

import ranks
from analyzers.run import Kind, discover

EXAMPLES = Path(__file__).parents[1] / "examples"
NEEDS = {
    "plain_pytorch": "torch",
    "lightning_trainer": "lightning",
    "hf_trainer": "transformers",
    "accelerate_loop": "accelerate",
}


def test_every_example_is_tried():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(NEEDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDS)
def test_an_example_trains_with_recorders(name, tmp_path):
    """Each rank has a heartbeat that says it ended well, and a file of its process groups."""
    if importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}")
    script, outputs = str(EXAMPLES / f"{name}.py"), str(tmp_path / "outputs")
    ended = ranks.run_job(script, ["--steps", "3", "--outputs", outputs], tmp_path / "logs", 2)
    assert ended.returncode == 0, ended.output
    hearts = sorted((tmp_path / "outputs" / "steps").glob("heartbeat_*.bin"))
    assert [heart.name for heart in hearts] == ["heartbeat_0.bin", "heartbeat_1.bin"]
    assert all(b"done" in heart.read_bytes() for heart in hearts)
    assert len(discover(tmp_path / "outputs").of(Kind.GROUPS)) == 2
