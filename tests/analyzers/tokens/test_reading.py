"""Rows of all forms are read, whatever is in them; what cannot be read is refused or counted."""

import json
import pickle
import zipfile

import numpy as np
import pytest

from analyzers import tokens
from analyzers.errors import HostileInput, InputError, NothingRecorded
from analyzers.report import Status
from analyzers.store import Options
from analyzers.tokens import files
from analyzers.tokens.facts import best_shift
from analyzers.tokens.files import rows_of
from analyzers.tokens.vocabulary import Vocabulary

FRESH = Options(cache=False)


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def analyzed(path, tokenizer=None, **more):
    return tokens.analyze(tokens.find_files([path], tokenizer), FRESH, **more)


def test_rows_without_a_tokenizer_are_unknown_not_healthy(tmp_path):
    rows = [{"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]}] * 3
    report = analyzed(write_lines(tmp_path / "a.jsonl", rows))
    assert report.verdict.status is Status.UNKNOWN
    assert any("--tokenizer" in gap for gap in report.verdict.missing)
    statistics = report.data.statistics
    assert (statistics.rows, statistics.tokens, statistics.trained, statistics.first_trained.median) == (3, 12, 6, 2)
    assert [row.trained for row in report.data.rows] == [False, False, True, True]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"input_ids": [1, 2, 3], "labels": [1, 2]}, "3 token ids, but 2 labels"),
        ({"input_ids": [1, 2, 3], "labels": ["a", "b", "c"]}, "no integers"),
        ({"input_ids": [1, 2], "labels": [[1, 2]]}, "dimensions"),
        ({"something": 1}, "no known columns"),
        ({"messages": ["text"]}, "no object"),
        ({"prompt": 1, "completion": 2}, "neither texts nor messages"),
    ],
)
def test_rows_that_cannot_be_read_are_counted(tmp_path, row, reason):
    good = {"input_ids": [1, 2, 3], "labels": [1, 2, 3]}
    report = analyzed(write_lines(tmp_path / "a.jsonl", [good, row, good]))
    assert report.data.statistics.damaged_rows == 1
    damaged = next(finding for finding in report.findings if finding.id == "tokens.damaged_rows")
    assert reason in damaged.evidence[0].text
    assert damaged.evidence[0].text.startswith("row 1: ")


@pytest.mark.parametrize("text", ["", "\n\n", "not json\n", "[1]\n", "\x00\xff"])
def test_files_without_rows_are_refused(tmp_path, text):
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(NothingRecorded):
        analyzed(path)


def test_a_bad_tokenizer_is_refused(tmp_path):
    data = write_lines(tmp_path / "a.jsonl", [{"input_ids": [1], "labels": [1]}])
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": []}')
    with pytest.raises(InputError, match=r"no tokenizer\.json"):
        analyzed(data, tmp_path / "tokenizer.json")
    with pytest.raises(InputError, match="no such file"):
        analyzed(data, tmp_path / "nowhere")


def test_conversations_without_a_tokenizer_are_counted(tmp_path):
    asked, answered = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    rows = [{"messages": [asked, answered]}, {"messages": [asked]}]
    report = analyzed(write_lines(tmp_path / "a.jsonl", rows))
    assert {finding.id for finding in report.findings} == {"tokens.no_answer"}


@pytest.mark.parametrize("shift", [-2, -1, 0, 1, 2])
def test_shifts_are_measured(shift):
    ids = np.arange(100, 120)
    labels = np.roll(ids, -shift)
    compared = np.zeros(20, dtype=bool)
    compared[5:15] = True
    assert best_shift(ids, labels, compared, 0) == (shift, 10)


def test_a_template_cannot_reach_the_machine(tmp_path):
    """A chat template comes from a stranger: it is rendered in a sandbox, in the reader's process."""
    pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    from benchmarks.masks.families import FAMILIES, write_tokenizer

    write_tokenizer(FAMILIES["chatml"], tmp_path)
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ ''.__class__.__mro__[1].__subclasses__() }}{% endfor %}"
    )
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    with pytest.raises(InputError, match="chat template refuses"):
        analyzed(write_lines(tmp_path / "a.jsonl", [row]), tmp_path)


def test_the_bytes_of_tokens_are_read_without_the_package():
    described = {
        "model": {"vocab": {"▁the": 0, "<0x0A>": 1, "é": 2}},
        "added_tokens": [{"id": 3, "content": "<s>"}],
    }
    vocabulary = Vocabulary(json.dumps(described).encode(), {})
    assert [vocabulary.bytes_of(token) for token in range(5)] == [" the", "\n", "Ã©", "<s>", "<4>"]


class Command:
    def __reduce__(self):
        return print, ("run",)


def saved(path, entries):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(f"batch/{name}", content)
    return path


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    path = saved(tmp_path / "a.pt", {"data.pkl": pickle.dumps({"input_ids": Command()})})
    with pytest.raises(HostileInput, match="print"):
        files.load(path)
    with pytest.raises(HostileInput):
        analyzed(path)


@pytest.mark.parametrize(
    ("offset", "shape", "strides"),
    [(0, (100,), (1,)), (4, (2,), (1,)), (0, (2, 2), (1,)), (0, (2,), (-1,)), (-1, (2,), (1,)), (0, (2,), (1 << 62,))],
)
def test_a_tensor_must_lie_in_its_storage(offset, shape, strides):
    with pytest.raises(HostileInput):
        files.Rebuild()(files.Storage(np.arange(5)), offset, shape, strides)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x02}q\x00."])
def test_damaged_batches_are_refused(tmp_path, content):
    path = tmp_path / "a.pt"
    path.write_bytes(content)
    with pytest.raises(InputError, match="not a readable"):
        files.load(path)


def test_batches_are_read_as_torch_reads_them(tmp_path):
    torch = pytest.importorskip("torch")
    whole = torch.arange(24).reshape(4, 6)
    batch = {"input_ids": whole[1:3].T, "attention_mask": torch.ones(6, 2, dtype=torch.bool), "name": "x"}
    torch.save(batch, tmp_path / "a.pt")
    read = files.load(tmp_path / "a.pt")
    assert np.array_equal(read["input_ids"], batch["input_ids"].numpy())
    assert read["attention_mask"].dtype == bool
    assert len(list(rows_of(tmp_path / "a.pt"))) == 6


def test_folders_are_read_whole_and_streamed(tmp_path):
    rows = [{"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}]
    for name in ("b", "a"):
        write_lines(tmp_path / f"{name}.jsonl", rows * 300)
    (tmp_path / "state.json").write_text("{}")
    report = analyzed(tmp_path, shown=2, row=50)
    assert report.data.statistics.rows == 600
    assert {row.sequence for row in report.data.rows} == {50, 51}


def test_a_data_set_of_the_datasets_package(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"input_ids": [[1, 2, 3]] * 5, "labels": [[-100, 2, 3]] * 5})
    path = str(tmp_path / "data-00000-of-00001.arrow")
    with arrow.OSFile(path, "wb") as sink, arrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    assert analyzed(tmp_path).data.statistics.trained == 10


@pytest.mark.parametrize("name", ["A.JSONL", "a.json"])
def test_files_of_editors_on_windows_are_read(tmp_path, name):
    """They begin with a byte order mark, and their endings may be capital letters."""
    row = json.dumps({"input_ids": [5, 6], "labels": [-100, 6]})
    text = row if name.endswith("JSONL") else f"[{row}]"
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    for path in (tmp_path, tmp_path / name):
        assert analyzed(path).data.statistics.rows == 1
