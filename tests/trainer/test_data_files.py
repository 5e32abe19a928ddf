"""Read training data as users have them: formats, splits, folders of the datasets package, and resumes in each."""

import csv
import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from trainer.config import JobConfig
from trainer.config.sections import Training
from trainer.data.loader import Loader, RowLoader, Share
from trainer.data.source import build_loader
from trainer.errors import DataError
from trainer.local_data import Files, Position, Split, local_files

ROWS = [{"prompt": f"What is {n}? ", "completion": f"{n} is {'odd' if n % 2 else 'even'}."} for n in range(60)]
CHATS = [
    {
        "messages": [
            {"role": "user", "content": f"What is {n}?"},
            # Only some answers have a weight: a table gives all messages the field, empty in most of them.
            {"role": "assistant", "content": f"A number, {n}."} | ({"weight": 0} if n % 3 == 0 else {}),
        ]
    }
    for n in range(30)
]
TEXTS = [{"text": f"Document {n} speaks of sheep and fences. " * 3} for n in range(25)]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"  # fmt: skip  # noqa: E501


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_array(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps(rows, indent=1))
    return path


def write_zipped(path: Path, rows: list[dict[str, Any]]) -> Path:
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pytest.importorskip("pyarrow")
    from pyarrow import Table, parquet

    parquet.write_table(Table.from_pylist(rows), path, row_group_size=7)
    return path


def write_saved(path: Path, rows: list[dict[str, Any]]) -> Path:
    pytest.importorskip("datasets").Dataset.from_list(rows).save_to_disk(path)
    return path


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_arrow(path: Path, rows: list[dict[str, Any]]) -> Path:
    pytest.importorskip("datasets").Dataset.from_list(rows).save_to_disk(path.parent / "folder")
    return next((path.parent / "folder").glob("*.arrow")).rename(path)


FORMS: dict[str, Callable[[Path, list[dict[str, Any]]], Path]] = {
    "a.jsonl": write_lines,
    "a.json": write_array,
    "a.json.gz": write_zipped,
    "a.parquet": write_parquet,
    "saved": write_saved,
    "a.csv": write_csv,
    "a.arrow": write_arrow,
}


def loader_of(path: Path, share: Share, seq_len: int = 32, **more: Any) -> Loader:
    config = JobConfig()
    return build_loader(config, Training(dataset_path=str(path), **more), share, seq_len)


def batches(loader: Loader, count: int) -> list[Any]:
    return [(inputs.tolist(), labels.tolist()) for inputs, labels in islice(loader, count)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("rows", [ROWS, TEXTS], ids=["rows", "text"])
@pytest.mark.parametrize("name", FORMS)
def test_each_format_gives_the_same_batches_and_resumes_on_any_mesh(
    tmp_path: Path, name: str, rows: list[dict[str, Any]]
) -> None:
    """After three steps on two ranks a run on one, or on four, reads the rows that one rank would have read."""
    expected = loader_of(write_lines(tmp_path / "plain.jsonl", rows), Share(4))
    assert isinstance(expected, RowLoader) is (rows is ROWS)
    whole = batches(expected, 30)
    path = FORMS[name](tmp_path / name, rows)
    halves = [loader_of(path, Share(2, rank, 2)) for rank in (0, 1)]
    taken = [batches(half, 3) for half in halves]
    for step in range(3):
        assert taken[0][step][0] + taken[1][step][0] == whole[step][0]
        assert taken[0][step][1] + taken[1][step][1] == whole[step][1]
    saved = halves[0].state_dict()
    assert saved == halves[1].state_dict()
    for ranks in (1, 4):
        again = [loader_of(path, Share(4 // ranks, rank, ranks)) for rank in range(ranks)]
        for loader in again:
            loader.load_state_dict(saved)
        # To the end of the data and on from their beginning.
        rest = [batches(loader, 27) for loader in again]
        joined = [[row for part in rest for row in part[step][0]] for step in range(27)]
        assert joined == [each[0] for each in whole[3:]]
    assert expected.consumed > expected.totals().sequences


def test_what_was_read_is_skipped_without_decoding_it(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", TEXTS)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(["{damaged"] * 20 + lines[20:]))
    assert [record.fields for record in Files([path]).records(Position(0, 20))] == TEXTS[20:]


def test_a_checkpoint_that_knows_only_a_count_resumes(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", ROWS)
    loader = loader_of(path, Share(2))
    batches(loader, 5)
    old, new = loader_of(path, Share(2)), loader_of(path, Share(2))
    old.load_state_dict({"consumed": 10})
    new.load_state_dict(loader.state_dict())
    assert old.state_dict() == new.state_dict()
    assert batches(old, 3) == batches(new, 3)


def test_only_what_is_needed_is_in_memory(tmp_path: Path) -> None:
    """Data of 40 MB are read with a few MB more than a small file needs."""
    path = tmp_path / "large.jsonl"
    with path.open("w") as file:
        for number in range(40_000):
            file.write(json.dumps({"text": f"{number} " + "sheep and fences " * 60}) + "\n")
    code = """
import resource, sys
from pathlib import Path
from trainer.config import JobConfig
from trainer.config.sections import Training
from trainer.data.loader import Share
from trainer.data.source import build_loader
start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
loader = build_loader(JobConfig(), Training(dataset_path=sys.argv[1]), Share(8), 2048)
batches = iter(loader)
for _ in range(500):
    next(batches)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], cwd=root, capture_output=True, text=True, timeout=120, check=True
    )
    assert int(done.stdout) < 20_000


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "saved"])
def test_messages_of_a_table_are_masked_as_those_of_lines(tmp_path: Path, name: str) -> None:
    """An empty weight is no weight of zero."""
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(letters)} | {"</s>": 256}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "chat_template": TEMPLATE}))
    config = JobConfig()
    config.model.hf_assets_path = str(tmp_path)
    path = FORMS[name](tmp_path / f"{name}", CHATS)
    loader = build_loader(config, Training(dataset_path=str(path)), Share(1), 64)
    learned = [label for _ in range(loader.totals().sequences) for label in next(iter(loader))[1][0].tolist()]
    text = tokenizer.decode([token for token in learned if token >= 0])
    assert text.split("</s>")[:-1] == [f"A number, {n}." for n in range(30) if n % 3]


@pytest.mark.parametrize(
    ("names", "split", "expected"),
    [
        (["train-00000-of-00002.parquet", "train-00001-of-00002.parquet", "test-00000-of-00001.parquet"], "TRAIN", 2),
        (["train.jsonl", "val.jsonl"], "VALIDATION", 1),
        (["train.jsonl", "test.jsonl"], "VALIDATION", 1),
        (["a.jsonl", "test.jsonl"], "TRAIN", 1),
        (["train/a.jsonl", "dev/a.jsonl"], "TRAIN", 1),
        (["a.jsonl", "b.txt", "constraints.txt"], "VALIDATION", 3),
        (["a.jsonl", "dataset_infos.json", ".cache/train.jsonl", "README.md"], "TRAIN", 1),
        (["en/c4-train.00000-of-01024.json.gz", "en/c4-validation.00000-of-00008.json.gz"], "TRAIN", 1),
    ],
)  # fmt: skip
def test_files_of_other_splits_are_left_out(tmp_path: Path, names: list[str], split: str, expected: int) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert len(local_files(tmp_path, Split[split])) == expected


def test_c4_is_read_from_a_local_copy(tmp_path: Path) -> None:
    """Of its variants the one that torchtitan trains on, and of that only the files to train on."""
    for folder, name, text in (
        ("en", "c4-train.00000-of-01024.json.gz", "train"),
        ("en", "c4-validation.00000-of-00008.json.gz", "wrong"),
        ("realnewslike", "c4-train.00000-of-00512.json.gz", "wrong"),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        write_zipped(tmp_path / folder / name, [{"text": text * 20, "url": "", "timestamp": ""}])
    loader = loader_of(tmp_path, Share(1), dataset="c4")
    assert bytes(token for token in next(iter(loader))[0][0].tolist() if token < 256).startswith(b"traintrain")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_splits_that_were_saved_together_are_told_apart(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    parts = {"train": datasets.Dataset.from_list(ROWS), "test": datasets.Dataset.from_list(TEXTS)}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "both")
    assert isinstance(loader_of(tmp_path / "both", Share(1)), RowLoader)
    assert local_files(tmp_path / "both", Split.VALIDATION) == [tmp_path / "both" / "test"]


@pytest.mark.parametrize(
    ("name", "package"), [("a.parquet", "pyarrow"), ("a.arrow", "datasets"), ("saved", "datasets")]
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("datasets", "pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / name).mkdir() if name == "saved" else (tmp_path / name).touch()
    if name == "saved":
        (tmp_path / name / "state.json").touch()
    with pytest.raises(DataError, match=f"the package {package} is not installed") as raised:
        loader_of(tmp_path / name, Share(1))
    assert raised.value.hint.startswith(f"pip install {package}")


def test_a_wrong_row_of_small_data_ends_the_run_at_its_start(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [*ROWS, {"prompt": 7, "completion": "seven"}])
    with pytest.raises(DataError, match=r"a.jsonl, line 61: TypeError"):
        loader_of(tmp_path / "a.jsonl", Share(1))


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.jsonl", b'{"text": "a"}\n[1]\n', "line 2: not a JSON object"),
        ("a.jsonl", b'{"words": 1}\n', "line 1: no text, but words"),
        ("a.jsonl", b'{"text": "\xff"}\n', "can't decode byte"),
        ("a.json.gz", b"no gzip", "a.json.gz"),
        ("a.json", b'[{"text": "a"}', "a.json"),
        ("a.jsonl", b"[" * 200_000 + b"\n", "a.jsonl: RecursionError"),
        ("a.jsonl", b'{"text": "a"}\n{"a":' + b"[" * 200_000 + b"\n", "line 2: RecursionError"),
        ("a.md", b"text", "known format"),
        ("a.jsonl", b"", "fewer than one sequence"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=reason):
        loader_of(tmp_path / name, Share(1))


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.json"])
def test_a_byte_order_mark_is_no_text(tmp_path: Path, name: str) -> None:
    plain = FORMS[name](tmp_path / name, ROWS)
    marked = tmp_path / f"marked{plain.suffix}"
    marked.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes())
    assert batches(loader_of(marked, Share(1)), 4) == batches(loader_of(plain, Share(1)), 4)


def test_other_data_have_another_checksum(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", ROWS)
    size, checksum = Files([path]).size, Files([path]).checksum()
    path.write_text(path.read_text().replace("odd", "ODD", 1))
    assert Files([path]).size == size
    assert Files([path]).checksum() != checksum
    large = tmp_path / "large.txt"
    large.write_bytes(b"x" * (65 << 20))
    checksum = Files([large]).checksum()
    with large.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"y")
    assert Files([large]).checksum() != checksum


def test_a_launch_without_its_data_ends_before_any_rank_starts(tmp_path: Path) -> None:
    config = Path(__file__).parents[2] / "configs" / "debug_model.toml"
    words = ["launch", "--config", str(config), "--training.dataset_path", "missing.jsonl", "--nproc", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "workbench", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr.startswith("error: missing.jsonl: No such file or directory\nhint: ")
    assert not list(tmp_path.iterdir())
