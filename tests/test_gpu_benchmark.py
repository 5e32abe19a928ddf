"""Try the measurements for CUDA machines on a CPU: isolation, limits, table, resuming."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as program
from benchmarks.gpu import memory
from benchmarks.gpu.__main__ import markdown
from benchmarks.gpu.case import Case, Place, Row, State
from benchmarks.gpu.memory import OwnTime


def test_every_case_has_a_name_of_its_own_and_a_limit() -> None:
    cases = program.all_cases()
    keys = [case.key for case in cases]
    assert len(keys) == len(set(keys)) > 40
    assert all(0 < case.limit_s <= 300 for case in cases)
    assert {case.section for case in cases if case.needs_cuda} >= {"oom", "collectives", "training"}


def test_a_case_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    """A case that runs and one that lacks its device give a row each; a resumed run repeats only what did not pass."""
    cases = [case for case in program.all_cases() if case.key in ("machine.versions", "machine.matrix_product")]
    rows = program.run_all(cases, "cpu", tmp_path, 10, resume=False)
    assert [row.state for row in rows] == [State.PASSED, State.SKIPPED]
    assert str(rows[0].measured["torch"])
    assert rows[1].problem == "needs a CUDA device"
    assert json.loads((tmp_path / "table.json").read_text())[0]["measured"] == rows[0].measured
    started = time.monotonic()
    [again, _] = program.run_all(cases, "cpu", tmp_path, 0, resume=True)
    assert (again, time.monotonic() - started < 60) == (rows[0], True)
    [late, _] = program.run_all(cases, "cpu", tmp_path, 0, resume=False)
    assert late.state == State.NOT_RUN
    program.pack(tmp_path)
    assert (tmp_path / "fixtures.tar.gz").is_file()


@pytest.mark.parametrize(
    ("key", "seconds", "state", "problem"),
    [("machine.versions", 0.01, State.TIMEOUT, "not done after"), ("no.such", 60, State.FAILED, "exit code")],
)
def test_a_case_that_ends_without_a_row_is_a_row(
    tmp_path: Path, key: str, seconds: float, state: State, problem: str
) -> None:
    section, _, name = key.partition(".")
    (tmp_path / "rows").mkdir()
    row = program.run_case(Case(section, name, lambda _: {}), "cpu", tmp_path, seconds)
    assert (row.state, row.problem.startswith(problem)) == (state, True)


def test_the_table_keeps_its_cells() -> None:
    row = Row("oom", "spike", State.FAILED, 1.25, {"message": "a | b\nc", "output": "long"}, "wrong | bytes")
    assert "| spike | failed | 1.2 | **wrong \\| bytes**; message a \\| b c |" in markdown([row])


def test_small_files_are_kept_and_large_ones_are_not(tmp_path: Path) -> None:
    place = Place("cpu", tmp_path, tmp_path / "fixtures")
    write = partial(Path.write_bytes, tmp_path / "dump")
    for size in (5 << 20, 10):
        write(bytes(size))
        place.keep(tmp_path / "dump")
    assert (tmp_path / "fixtures" / "dump").stat().st_size == 10


def test_the_own_time_of_contexts_leaves_out_what_runs_inside_them() -> None:
    @contextmanager
    def context() -> Iterator[None]:
        busy(0.02)
        yield
        busy(0.01)

    own = OwnTime()
    with own.of(context()), own.of(nullcontext()):
        busy(0.2)
    own.end_step()
    assert own.steps == [pytest.approx(0.03, abs=0.02)]


def test_only_the_named_threads_count_while_the_job_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "IDLE_S", 0.3)
    others, ended = memory.threads_here(), threading.Event()
    thread = threading.Thread(target=lambda: [busy(0.01) for _ in iter(ended.is_set, True)])
    thread.start()
    new = memory.threads_here() - others
    assert memory.idle_share(new) > 0.1
    assert memory.idle_share(others) < 0.1
    ended.set()
    thread.join()


def busy(seconds: float) -> None:
    """Use the processor for some seconds."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
