"""Test `workbench tokens`, which prints the tokens that the model reads."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def tokens(*more):
    return subprocess.run(
        [sys.executable, "-m", "workbench", "tokens", *more, "--json"], capture_output=True, text=True, check=False
    )


def test_tokens_stand_beside_what_is_to_be_foreseen(tmp_path):
    """Two documents are marked at their beginnings and ends, and each label is the next token."""
    (tmp_path / "two.jsonl").write_text('{"text": "to be"}\n{"text": "or not"}\n')
    shown = tokens(
        "--sequences", "2", "--training.dataset_path", str(tmp_path / "two.jsonl"), "--training.seq_len", "6"
    )
    assert shown.returncode == 0, shown.stderr
    data = json.loads(shown.stdout)["data"]
    read = [row["text"] for row in data["rows"]]
    assert read == ["<bos>", *"to␣be", "<eos>", "<bos>", *"or␣n"]
    assert [row["label_text"] for row in data["rows"]][:-1] == read[1:]
    assert data["tokens"] == data["sequences"] * data["seq_len"] + 1 + data["left_over"] == 15


def test_a_text_that_is_not_there_is_refused(tmp_path):
    shown = tokens("--training.dataset_path", str(tmp_path / "nowhere.txt"))
    assert shown.returncode == 2
    assert shown.stderr.startswith("error: ")
    assert "\nhint: " in shown.stderr
