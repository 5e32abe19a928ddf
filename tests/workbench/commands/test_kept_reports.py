"""Ask the same question twice: the second answer comes from the cache, and only while nothing has changed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import run as run_command

from workbench.command_options.options import LogReadOptions, ReadOptions
from workbench.commands import output
from workbench.commands.output import REPORT_FILE

FIXTURES = Path(__file__).parents[2] / "fixtures"
RUNS = [
    "oom_2ranks",
    "stuck_2ranks",
    "nan_2ranks",
    "leak_2ranks",
    "straggler_4ranks",
    "deadlock_4ranks",
    "torchtitan_2ranks",
    "script_2ranks",
    "traces",
    "other_trainers",
]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fixture: an empty cache of its own, because the tests count its entries."""
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Fixture: a copy of a run that a test may change."""
    return Path(shutil.copytree(FIXTURES / "stuck_2ranks", tmp_path / "run"))


def kept(cache: Path) -> list[Path]:
    return sorted(cache.glob(f"*/{REPORT_FILE}"))


def answer(*words: object) -> str:
    ended = run_command(*words)
    assert ended.returncode == 0, ended.stderr
    return str(ended.stdout)


@pytest.mark.parametrize("name", RUNS)
def test_the_kept_answer_is_the_same_document(cache: Path, name: str) -> None:
    for form in ("text", "json"):
        first = answer("inspect", FIXTURES / name, "--format", form)
        assert len(kept(cache)) == 1
        assert answer("inspect", FIXTURES / name, "--format", form) == first
        assert answer("inspect", FIXTURES / name, "--format", form, "--no-cache") == first


def test_the_second_answer_loads_no_analyzer(cache: Path, folder: Path) -> None:
    code = (
        "import sys; sys.argv = ['workbench', 'inspect', sys.argv[1]]\n"
        "from workbench.__main__ import main\n"
        "try: main()\n"
        "finally: print(*(name for name in ('numpy', 'pandas', 'analyzers.incident') if name in sys.modules))"
    )
    loaded = [
        subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert loaded[0].splitlines()[-1] == "numpy pandas analyzers.incident"
    assert loaded[1].splitlines()[-1] == ""
    assert loaded[0].splitlines()[:-1] == loaded[1].splitlines()[:-1]


def test_a_kept_answer_has_the_exit_status_of_its_findings(cache: Path, folder: Path) -> None:
    ended = [run_command("hang", folder, "--fail-on", "error").returncode for _ in range(2)]
    assert ended == [1, 1]
    assert len(kept(cache)) == 1


def change_a_file(folder: Path) -> None:
    manifest = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(manifest | {"note": "changed"}))


def replace_a_file_by_one_of_the_same_size_and_time(folder: Path) -> None:
    path = folder / "run.json"
    before, text = path.stat(), path.read_text()
    path.write_text(text.replace('"failed"', '"FAILED"'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size


@pytest.mark.parametrize(
    "change",
    [
        change_a_file,
        replace_a_file_by_one_of_the_same_size_and_time,
        lambda folder: (folder / "logs/extra.log").write_text("RuntimeError: CUDA error: an illegal memory access\n"),
        lambda folder: next(folder.glob("steps/*.jsonl")).unlink(),
        lambda folder: (folder.parent / "run.json").write_text("{}"),
        lambda folder: (folder / "dumps").chmod(0o700),
    ],
    ids=["changed", "same size and time", "new", "removed", "manifest above", "permissions"],
)
def test_a_change_is_another_question(cache: Path, folder: Path, change) -> None:
    before = output.key_of(None, [folder], ReadOptions())
    assert before == output.key_of(None, [folder], ReadOptions())
    change(folder)
    assert before != output.key_of(None, [folder], ReadOptions())


def test_options_and_the_analyzer_are_part_of_the_question(folder: Path) -> None:
    questions = [
        (None, LogReadOptions()),
        ("hang", LogReadOptions()),
        (None, LogReadOptions(rank=1)),
        (None, LogReadOptions(step=1)),
        (None, LogReadOptions(column_map=["loss=nll"])),
    ]
    keys = {output.key_of(room, [folder], read) for room, read in questions}
    assert len(keys) == len(questions)
    assert output.key_of(None, [folder], LogReadOptions(jobs=1)) in keys


@pytest.mark.parametrize("read", [ReadOptions(no_cache=True), ReadOptions(max_memory="2GiB")])
def test_limits_and_no_cache_keep_nothing(folder: Path, read: ReadOptions) -> None:
    assert output.key_of(None, [folder], read) is None


def test_a_running_job_is_asked_again(cache: Path, folder: Path) -> None:
    manifest = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(manifest | {"status": "running"}))
    answer("inspect", folder)
    assert kept(cache) == []


def test_an_answer_that_lacks_a_file_is_not_kept(cache: Path, folder: Path) -> None:
    next(folder.glob("dumps/rank_*")).write_bytes(b"\x80\x04broken")
    assert "unreadable" in answer("inspect", folder)
    assert kept(cache) == []


@pytest.mark.parametrize("damage", [lambda body: body[:-20], lambda body: body.replace(b"0", b"1"), lambda _: b""])
def test_a_damaged_entry_is_made_again(cache: Path, folder: Path, damage) -> None:
    first = answer("inspect", folder)
    [path] = kept(cache)
    path.write_bytes(damage(path.read_bytes()))
    assert answer("inspect", folder) == first
    assert kept(cache) == [path]
    assert output.find(path.parent.name) is not None


def test_an_entry_of_another_user_is_not_trusted(cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer("inspect", folder)
    [path] = kept(cache)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    if path.parent.stat().st_uid == 0:  # of root, which is trusted
        os.chown(path.parent, 4712, -1)
    assert output.find(path.parent.name) is None
    assert path.exists()


def test_a_cache_that_cannot_be_written_changes_no_answer(cache: Path, folder: Path) -> None:
    first = answer("inspect", folder)
    shutil.rmtree(cache)
    cache.write_text("a file in the place of the folder")
    assert answer("inspect", folder) == first


def test_the_cache_lists_and_clears_kept_reports(cache: Path, folder: Path) -> None:
    answer("inspect", folder)
    assert kept(cache)
    assert "deleted" in answer("cache", "--clear")
    assert kept(cache) == []
