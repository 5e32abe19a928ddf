"""What a job's command line keeps secret is not written into its run.json, which its owner alone can read."""

import json
import os
import time

import pytest

from workbench.launch.run_manifest import record_start, write_manifest
from workbench.recorders.files import write_json
from workbench.recorders.secret_text import REMOVED, replace_secrets, without_secrets


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["--wandb-key", "abc", "--lr", "1"], ["--wandb-key", REMOVED, "--lr", "1"]),
        (["--token=abc"], [f"--token={REMOVED}"]),
        (["env", "HF_TOKEN=abcd", "python"], ["env", f"HF_TOKEN={REMOVED}", "python"]),
        (["--data", "https://me:pw@host/x"], ["--data", f"https://{REMOVED}:{REMOVED}@host/x"]),
        (["--logger.api_key", "x y"], ["--logger.api_key", REMOVED]),
        (["--x", "hf_QpXzRtYuIoPaSdFgHjKlZxCv"], ["--x", REMOVED]),
        (["--max_tokens", "12", "--pad_token", "<s>", "--token", "7"], None),
        (["--tokenizer", "model/", "--training.seq_len", "8"], None),
        (["--password", "--lr", "1"], None),
    ],
)
def test_secrets_are_left_out_and_nothing_else(words, kept):
    assert without_secrets(words) == (words if kept is None else kept)


def test_run_json_has_no_secret_and_is_private(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["workbench", "launch", "--", "train.py", "--api-key", "hunter2"])
    record_start(tmp_path, ["train.py", "--api-key", "hunter2"], 2)
    path = tmp_path / "run.json"
    assert "hunter2" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)  # a group may share it: that is the user's choice, and stays
    write_manifest(path, json.loads(path.read_text()))
    assert path.stat().st_mode & 0o777 == 0o640
    write_json(path, {})
    assert path.stat().st_mode & 0o777 == 0o640
    write_json(tmp_path / "new.json", {})
    assert (tmp_path / "new.json").stat().st_mode & 0o777 == 0o600
    (tmp_path / "open").write_text("of somebody else")
    (tmp_path / "open").chmod(0o666)
    for name, make in (("hard.json", os.link), ("soft.json", os.symlink)):
        make(tmp_path / "open", tmp_path / name)
        write_json(tmp_path / name, {})
        assert (tmp_path / name).lstat().st_mode & 0o777 == 0o600
    assert (tmp_path / "open").read_text() == "of somebody else"


@pytest.mark.parametrize(
    "part",
    [
        "a.",
        "a-",
        "a_",
        "a",
        "--a-",
        "://",
        "x@",
        "1.",
        "key=",
        "/a",
        "sk-ab-",
        "wandb ",
        "AAAA\n-----END PRIVATE KEY-----",
    ],
)
def test_the_time_grows_with_the_length_of_a_text_alone(part):
    """The command line of a job, and the texts of a hostile run, may have any length."""
    began = time.process_time()
    replace_secrets(part * (60_000 // len(part)), lambda _: "")
    assert time.process_time() - began < 5
