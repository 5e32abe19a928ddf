"""The native reader of snapshots: the same columns as the reader in Python, and nothing that this one refuses."""

import pickle
import random
from pathlib import Path

import pytest

from analyzers.memory.reading import reader
from analyzers.memory.reading.reader import VOCABULARY
from benchmarks.core import snapshot_files
from benchmarks.fuzzing.mutations import mutated
from benchmarks.safety.native_readers import PAIRS, LeftToPython, difference, snapshot_seeds
from wild import recorded

native = pytest.importorskip("analyzers.native._readers", reason="not built: there was no C++ compiler")

FIXTURES = Path(__file__).parents[2] / "fixtures"
[SNAPSHOTS] = [pair for pair in PAIRS if pair.kind == "snapshots"]
FRAME = {"name": "forward", "filename": "train.py", "line": 7}


def entry(**fields):
    return {"action": "alloc", "addr": 4096, "size": 8, "stream": 0, "time_us": 5, "frames": [FRAME]} | fields


def read(content, folder: Path, protocol: int = 4):
    """Return whether the native reader reads a snapshot, and where the readers differ."""
    path = folder / "snapshot.pickle"
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol))
    try:
        return True, difference(SNAPSHOTS, path)
    except LeftToPython:
        return False, ""


@pytest.mark.parametrize("path", sorted(FIXTURES.rglob("*_snapshot.pickle*")), ids=lambda path: path.parts[-4])
def test_recorded_snapshots_are_equal(path):
    assert difference(SNAPSHOTS, path) == ""


@pytest.mark.parametrize(("name", "body"), snapshot_seeds(), ids=lambda value: value if isinstance(value, str) else "")
def test_all_schemas_are_equal(name, body, tmp_path):
    assert read(body, tmp_path) == (True, "")


def test_mutated_snapshots_are_equal(tmp_path):
    rng, seeds, equal = random.Random(1), snapshot_seeds(), 0
    for _ in range(300):
        name, body = rng.choice(seeds)
        done, differs = read(mutated(rng, name, body), tmp_path)
        assert not differs
        equal += done
    assert equal > 75


def test_more_entries_than_a_chunk_are_equal(tmp_path):
    content, _ = snapshot_files.new_stacks(20_000)
    for number, one in enumerate(content["device_traces"][0]):
        if number % 9_000 == 100:
            one |= {"category": "parameter", "user_metadata": f"weight {number}"}
    assert read(content, tmp_path) == (True, "")


def test_several_long_traces_are_left_to_python(tmp_path):
    traces = [[entry(addr=number) for number in range(9_000)] for _ in range(2)]
    assert read({"segments": [], "device_traces": traces}, tmp_path) == (False, "")


def test_entries_with_fields_of_a_wrong_type_are_left_to_python(tmp_path):
    for wrong in (
        {"size": 1.5},
        {"size": True},
        {"addr": -1},
        {"addr": 1 << 64},
        {"time_us": "5"},
        {"action": None},
        {"frames": (FRAME,)},
        {"frames": [FRAME, None]},
        {"frames": [{"name": "x", "filename": None}]},
        {"pool_id": (1,)},
        {"pool_id": [0, 0]},
        {"category": "K", "user_metadata": 3},
        {"category": "\u212aernel"},
    ):
        content = {"segments": [], "device_traces": [[entry(**wrong)]]}
        assert read(content, tmp_path) == (False, ""), wrong


def test_unusual_but_whole_entries_are_equal(tmp_path):
    for unusual in (
        {"addr": (1 << 64) - 1},
        {"size": -1},
        {"action": "sing"},
        {"frames": []},
        {"frames": None},
        {"frames": [FRAME] * 900},
        {"frames": [FRAME | {"line": -1}]},
        {"frames": [FRAME | {"line": 1 << 40}]},
        {"frames": [FRAME | {"filename": "h\u00e4\U0001f600"}]},
        {"pool_id": (-1, -1)},
        {"pool_id": None},
        {"category": 3, "user_metadata": None},
        {"category": "PARAMETER", "user_metadata": "w"},
        {"more": [[], {}, 0.5]},
        {"user_metadata": 3},
        {"time_us": -(1 << 63)},
    ):
        content = {"segments": [], "device_traces": [[entry(**unusual), entry()]]}
        assert read(content, tmp_path) == (True, ""), unusual


def test_shared_entries_and_lists_are_left_to_python(tmp_path):
    one, trace = entry(), [entry()]
    blocks = [{"address": 0, "size": 8, "requested_size": 8, "state": "inactive", "frames": []}]
    segments = [{"address": 0, "total_size": 8, "stream": 0, "device": 0, "blocks": blocks} for _ in range(2)]
    for content in (
        {"device_traces": [[one, one]]},
        {"device_traces": [trace, trace]},
        {"segments": segments},
    ):
        assert read(content, tmp_path) == (False, "")


def test_what_no_recorder_writes_is_left_to_python(tmp_path):
    nested = []
    for _ in range(50):
        nested = [nested]
    endless: list = []
    endless.append(endless)
    plain = pickle.dumps({"segments": [], "device_traces": []}, 2)
    for hostile in (
        b"\x80\x04cos\nsystem\n.",
        b"\x80\x04]r\xff\xff\xff\x7f.",
        b"\x80\x04h\x00.",
        b"\x80\x04t.",
        b"\x80\x04u.",
        b"\x80\x04e.",
        b"\x80\x04(((.",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f}.",
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff.",
        b"\x80\x04\x8c\x02\xff\xfe.",
        b"\x80\x04" + b"]" * 100_000,
        b"\x80\x06}.",
        b"\x80\x04}}s.",
        b"\x80\x04}N.",
        b"\x80",
        plain[:-1],
        *map(pickle.dumps, ({"allocator_settings": nested}, {"workbench": endless}, entry(), [entry()], b"bytes")),
        *map(pickle.dumps, ({"segments": 3}, {"device_traces": [3]})),
    ):
        assert read(hostile, tmp_path) == (False, ""), hostile[:40]


def test_an_error_while_reading_the_file_is_left_to_python():
    class Broken:
        def read(self, count):
            raise OSError(5, "Input/output error")

    class Cancelled:
        def read(self, count):
            raise KeyboardInterrupt

    assert native.read_snapshot(Broken(), VOCABULARY) is None
    with pytest.raises(KeyboardInterrupt):
        native.read_snapshot(Cancelled(), VOCABULARY)


@pytest.mark.real
def test_real_snapshots_are_equal():
    equal = 0
    for path in sorted(recorded("memory").iterdir()):
        try:
            assert difference(SNAPSHOTS, path) == ""
            equal += 1
        except LeftToPython:
            continue
    assert equal


def test_reading_uses_the_native_reader(tmp_path, monkeypatch):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[entry()]]}))
    monkeypatch.setattr(reader, "unpickled", None)
    columns, meta = reader.read([path])
    assert meta["entries"] == [1]
    assert columns["addr"].tolist() == [4096]


def test_an_instruction_across_the_end_of_a_frame_is_left_to_python(tmp_path):
    body = pickle.dumps({"segments": [], "device_traces": [[entry()]]}, 4)
    assert read(body, tmp_path) == (True, "")
    for shorter in range(1, 40):
        assert read(body[:3] + (len(body) - 11 - shorter).to_bytes(8, "little") + body[11:], tmp_path)[1] == ""
