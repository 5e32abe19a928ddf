"""While many files are read, a user who waits hears what the first of them say."""

import json
import shutil
from pathlib import Path

import pytest

from analyzers import memory, run, steps, store, traces
from analyzers.steps import loading
from analyzers.store import Options, Progress

FIXTURES = Path(__file__).parents[2] / "fixtures"
GPU_TRACE = """{"schemaVersion": 1, "distributedInfo": {"rank": %d, "world_size": 6}, "traceEvents": [
{"ph": "X", "name": "cudaLaunchKernel", "cat": "cuda_runtime", "ts": 0, "dur": 10, "pid": 1, "tid": 1,
 "args": {"correlation": 1}},
{"ph": "X", "name": "gemm", "cat": "kernel", "ts": 20, "dur": 1000, "pid": 0, "tid": 7,
 "args": {"correlation": 1, "device": 0, "stream": 7}},
{"ph": "X", "name": "cudaLaunchKernel", "cat": "cuda_runtime", "ts": 9000, "dur": 10, "pid": 1, "tid": 1,
 "args": {"correlation": 2}},
{"ph": "X", "name": "gemm", "cat": "kernel", "ts": 9020, "dur": 1000, "pid": 0, "tid": 7,
 "args": {"correlation": 2, "device": 0, "stream": 7}}]}"""


class Waiting(Progress):
    """The progress of an analysis for which somebody waits, or nobody; it collects the partial answers."""

    def __init__(self, *, is_awaited: bool) -> None:
        super().__init__()
        self._is_awaited = is_awaited
        self.answers: list[tuple[int, str]] = []

    @property
    def is_awaited(self) -> bool:
        return self._is_awaited

    def answer(self, files: int, sentence: str) -> None:
        self.answers.append((files, sentence))


@pytest.fixture(autouse=True)
def few_files_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixture: five files count as many, and two suffice for a first answer."""
    monkeypatch.setattr(store, "MANY_FILES", 4)
    monkeypatch.setattr(store, "FIRST_FILES", 2)
    monkeypatch.setattr(loading, "BYTES_OF_A_CHILD", 1)


def traces_of(folder: Path) -> None:
    for rank in range(6):
        (folder / f"rank{rank}_trace.json").write_text(GPU_TRACE % rank)


def step_logs_of(folder: Path) -> None:
    (folder / "steps").mkdir()
    for rank in range(6):
        head, *lines = (FIXTURES / f"straggler_2ranks/steps/rank_{int(rank == 1)}.jsonl").read_text().splitlines()
        header = json.dumps(json.loads(head) | {"rank": rank, "world_size": 6})
        (folder / f"steps/rank_{rank}.jsonl").write_text("\n".join([header, *lines]))


def snapshots_of(folder: Path) -> None:
    whole = FIXTURES / "leak_2ranks/memory_snapshot/iteration_10/rank0_memory_snapshot.pickle.gz"
    for rank in range(6):
        shutil.copy(whole, folder / f"rank{rank}_memory_snapshot.pickle.gz")


ANALYSES = {
    "trace": (traces_of, traces.analyze, "The device waits for the host during 80 %"),
    "steps": (step_logs_of, steps.analyze, "Rank 1 makes the others wait"),
    "memory": (snapshots_of, memory.analyze, "rank 0 peaked at 11.3 MiB"),
}


@pytest.mark.parametrize("name", ANALYSES)
def test_the_first_two_and_four_of_six_files_are_answered_from(tmp_path: Path, name: str) -> None:
    write, analyze, expected = ANALYSES[name]
    write(tmp_path)
    waiting = Waiting(is_awaited=True)
    report = analyze(run.discover(tmp_path).artefacts, Options(progress=waiting))
    assert [files for files, _ in waiting.answers] == [2, 4]
    for _, sentence in waiting.answers:
        assert expected in sentence
    assert report == analyze(run.discover(tmp_path).artefacts, Options())


@pytest.mark.parametrize("name", ANALYSES)
def test_nothing_is_computed_for_nobody(tmp_path: Path, name: str) -> None:
    write, analyze, _ = ANALYSES[name]
    write(tmp_path)
    waiting = Waiting(is_awaited=False)
    analyze(run.discover(tmp_path).artefacts, Options(progress=waiting))
    assert waiting.answers == []


def test_a_step_that_the_first_logs_lack_is_no_error(tmp_path: Path) -> None:
    step_logs_of(tmp_path)
    last = tmp_path / "steps/rank_5.jsonl"
    last.write_text(last.read_text() + '\n{"step": 99, "start_ns": 1795259792821466497, "dur_ns": 692638147}\n')
    waiting = Waiting(is_awaited=True)
    steps.analyze(run.discover(tmp_path).artefacts, Options(step=99, progress=waiting))
    assert waiting.answers == []
