"""Test `workbench tokens`, which prints the tokens that the model reads."""

import json
import subprocess
import sys

import pytest


def run(*words):
    return subprocess.run(
        [sys.executable, "-m", "workbench", "tokens", *words], capture_output=True, text=True, check=False
    )


def tokens(*more):
    return run(*more, "--json")


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_text_that_is_not_there_is_refused(tmp_path):
    shown = tokens("--training.dataset_path", str(tmp_path / "nowhere.txt"))
    assert shown.returncode == 2
    assert shown.stderr.startswith("error: ")
    assert "\nhint: " in shown.stderr


@pytest.fixture
def trained_padding(tmp_path):
    """Return a data set in which padding is trained."""
    row = {"input_ids": [5, 6, 7, 0, 0], "labels": [-100, 6, 7, 0, 0], "attention_mask": [1, 1, 1, 0, 0]}
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(row) + "\n")
    return path


def test_a_mistake_fails_a_check(trained_padding):
    shown = run(str(trained_padding), "--fail-on", "error")
    assert shown.returncode == 1
    assert "[tokens.padding_trained]" in shown.stdout
    assert run(str(trained_padding)).returncode == 0


def test_the_document_is_that_of_the_schema(trained_padding):
    report = json.loads(tokens(str(trained_padding)).stdout)
    assert report["schema"] == "workbench.tokens/1"
    assert report["verdict"]["class"] == "padding_trained"
    assert [row["role"] for row in report["data"]["rows"]] == ["between"] * 3 + ["padding"] * 2
    shown = subprocess.run([sys.executable, "-m", "workbench", "schema", "tokens"], capture_output=True, check=True)
    assert b"padding_trained" not in shown.stdout
    assert b"TokenStatistics" in shown.stdout


def test_a_page_shows_each_token(trained_padding, tmp_path):
    page = tmp_path / "page.html"
    assert run(str(trained_padding), "-o", str(page)).returncode == 0
    text = page.read_text()
    assert 'title="1: token 6, between, label 6"' in text
    assert text.count("underline wavy") == 3  # two tokens of padding, and the legend
    assert "<script" not in text


def test_a_hostile_text_stays_text(tmp_path):
    """Neither a terminal nor a page interprets what stands in a data set."""
    tokenizer = {
        "model": {"vocab": {"<b>": 0, "\\x1b[31m": 1}},
        "added_tokens": [{"id": 2, "content": "\x1b[31m<img>"}],
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({"input_ids": [0, 1, 2], "labels": [0, 1, 2]}) + "\n")
    for words in ([], ["--format", "html"], ["--format", "markdown"]):
        shown = run(str(path), "--tokenizer", str(tmp_path), *words)
        assert shown.returncode == 0, shown.stderr
        assert "\x1b" not in shown.stdout
        assert "<img>" not in shown.stdout or not words


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["nowhere.jsonl"], 3),
        (["README.md"], 3),
        (["docs"], 3),
        (["train.jsonl", "--training.seq_len", "5"], 2),
        (["train.jsonl", "--tokenizer", "nowhere"], 3),
        (["train.jsonl", "--seq-len", "0"], 2),
    ],
)
def test_wrong_words_are_refused(words, status, trained_padding):
    words = [str(trained_padding) if word == "train.jsonl" else word for word in words]
    shown = run(*words)
    assert shown.returncode == status
    assert "Traceback" not in shown.stderr
    assert status == 2 or (shown.stderr.startswith("error: ") and "\nhint: " in shown.stderr)
