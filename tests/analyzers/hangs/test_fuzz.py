"""Analyse damaged and random dumps: each folder is analysed or refused with an error, without a crash."""

import pickle
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzers import run
from analyzers.errors import InputError
from analyzers.hangs import analyze
from analyzers.hangs.reading import reader
from analyzers.run import Kind

FIELDS = (
    "frames", "record_id", "pg_id", "process_group", "collective_seq_id", "p2p_seq_id", "op_id", "profiling_name",
    "time_created_ns", "input_sizes", "output_sizes", "input_dtypes", "state", "retired", "is_p2p", "timeout_ms",
)  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)
LIKELY = {
    "process_group": st.sampled_from([("0", "default_pg"), ("1", "tp"), ["1", "tp"], ("", "")]),
    "profiling_name": st.sampled_from(["nccl:all_reduce", "gloo:barrier", "nccl:send 0->1", "nccl:recv 1<-0", "x"]),
    "collective_seq_id": st.integers(-1, 4) | st.sampled_from(["1", "2"]),
    "state": st.sampled_from(["scheduled", "started", "completed"]),
    "is_p2p": st.booleans(),
    "retired": st.booleans(),
}
ENTRY = st.fixed_dictionaries({}, optional={name: LIKELY.get(name, ANYTHING) | ANYTHING for name in FIELDS})
CONFIG = st.dictionaries(
    st.sampled_from(["0", "1"]),
    st.fixed_dictionaries({"desc": st.text(max_size=3), "ranks": st.sampled_from(["[0, 1]", "[0, 1, 2]", "[]", "x"])})
    | ANYTHING,
)
DUMP = st.fixed_dictionaries(
    {"entries": st.lists(ENTRY | ANYTHING, max_size=6)},
    optional={"pg_config": CONFIG | ANYTHING, "pg_status": ANYTHING, "version": ANYTHING},
)


def answered(folder: Path) -> None:
    """Analyse the folder's files as dumps, whatever kind they seem to be."""
    found = run.Run(folder, tuple(run.Artefact(p, Kind.FLIGHT, i) for i, p in enumerate(sorted(folder.iterdir()))))
    try:
        report = analyze(found)
    except InputError:
        return
    assert msgspec.json.decode(report.json())["schema"] == "workbench.hang/1"


@pytest.mark.usefixtures("in_process")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(DUMP, min_size=1, max_size=3))
def test_dumps_of_any_content(dumps):
    with tempfile.TemporaryDirectory() as home:
        for rank, content in enumerate(dumps):
            (Path(home) / f"rank_{rank}").write_bytes(pickle.dumps(content, protocol=2))
        answered(Path(home))


@pytest.mark.usefixtures("in_process")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_bytes(recorder, data):
    groups = {"0": ("default_pg", [0, 1])}
    content = recorder.dump([recorder.entry(("0", "default_pg"), seq, done=seq < 3) for seq in (1, 2, 3)], groups)
    raw = bytearray(data.draw(st.sampled_from([pickle.dumps(content, protocol=2), recorder.as_json(content)])))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "rank_0").write_bytes(raw[: data.draw(st.integers(1, len(raw)))])
        answered(Path(home))


@pytest.fixture
def in_process(monkeypatch):
    """Read files in this process: hundreds of child processes would take minutes, and they would run the same code."""

    class Loaded(dict):
        meta: dict

    def load_set(paths, _reader, _options, _parts):
        columns, meta = reader.read(list(paths))
        found = Loaded(columns)
        found.meta = msgspec.json.decode(msgspec.json.encode(meta))
        return [(list(range(len(paths))), found)]

    monkeypatch.setattr("analyzers.store.load_set", load_set)
