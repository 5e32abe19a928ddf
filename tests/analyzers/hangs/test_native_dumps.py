"""The native reader of Flight Recorder dumps: the same columns as the reader in Python."""

import json
import pickle
import random

import numpy as np
import pytest

from analyzers.hangs.reading import reader
from benchmarks.fuzzing.mutations import mutated
from benchmarks.safety.native_readers import PAIRS, LeftToPython, difference, dump_seeds

native = pytest.importorskip("analyzers.native._readers", reason="not built: there was no C++ compiler")

[DUMPS] = [pair for pair in PAIRS if pair.kind == "dumps"]
ENTRY = {
    "state": "completed", "retired": True, "profiling_name": "nccl:all_reduce", "process_group": ("0", "default_pg"),
    "is_p2p": False, "pg_id": 0, "collective_seq_id": 1, "p2p_seq_id": 0, "op_id": 1, "record_id": 0,
    "frames": [{"name": "step", "filename": "train.py", "line": 3}], "input_sizes": [[4]], "output_sizes": [[4]],
    "input_dtypes": ["Float"], "output_dtypes": ["Float"], "time_created_ns": 5, "timeout_ms": 600_000,
}  # fmt: skip


@pytest.fixture(scope="module")
def seeds():
    return dump_seeds()


def dump(entries):
    return {"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": entries}


def numbered(count, **fields):
    return [ENTRY | {"record_id": i, "collective_seq_id": i + 1, "op_id": i + 1} | fields for i in range(count)]


def read(content, folder):
    """Return whether the native reader reads a dump, and where the readers differ."""
    path = folder / "rank_0"
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, 2))
    try:
        return True, difference(DUMPS, path)
    except LeftToPython:
        return False, ""


def records(parsed):
    """Return the record ids of the old and of the recent entries of a dump that the native reader has read."""
    recent = np.frombuffer(parsed.recent["record"], np.int64).tolist()
    return [entry["record_id"] for entry in parsed["entries"]], recent


def test_dumps_of_nccl_and_gloo_are_equal(seeds, tmp_path):
    equal = 0
    for _, body in seeds:
        done, differs = read(body, tmp_path)
        assert not differs
        equal += done
    assert equal > len(seeds) // 2


def test_mutated_dumps_are_equal(seeds, tmp_path):
    rng, equal = random.Random(2), 0
    for _ in range(200):
        done, differs = read(mutated(rng, *rng.choice(seeds)), tmp_path)
        assert not differs
        equal += done
    assert equal > 50


def test_old_entries_are_left_out_and_counted(tmp_path):
    path = tmp_path / "rank_0"
    path.write_bytes(pickle.dumps(dump(numbered(1000)), 2))
    old, recent = records(reader.parse(path, 64))
    assert (old, recent) == ([0, 935], [*range(936, 1000)])
    with path.open("rb") as file:
        assert native.read_dump(file, 64)[1][0] == 1000 - len(old + recent)


def test_everything_from_the_first_unfinished_entry_on_is_kept(tmp_path):
    entries = numbered(400)
    entries[7] |= {"state": "started", "retired": False}
    assert read(dump(entries), tmp_path) == (True, "")
    path = tmp_path / "rank_0"
    assert records(reader.parse(path, 64)) == ([0, 6], [*range(7, 400)])


def test_a_finished_launch_closes_operations_that_come_later(tmp_path):
    entries = numbered(200)
    sends = numbered(30, state="scheduled", retired=False, is_p2p=True, profiling_name="nccl:send 0->1", p2p_seq_id=9)
    entries[50] |= {"profiling_name": "nccl:coalesced", "collective_seq_id": 3, "p2p_seq_id": 9, "is_p2p": True}
    later = [send | {"collective_seq_id": 3, "record_id": 200 + i} for i, send in enumerate(sends)]
    assert read(dump([*entries, *later]), tmp_path) == (True, "")


def launches(count, closing_state="completed", **inside):
    """Return entries as NCCL writes them for `count` launches of a send, a receive and the entry that closes them."""
    part = {"state": "scheduled", "retired": False, "is_p2p": True} | inside
    names = ("nccl:send 0->1", "nccl:recv 0<-1", "nccl:coalesced")
    entries = []
    for i in range(count):
        same = {"collective_seq_id": 1, "p2p_seq_id": i + 1}
        closing = {"state": closing_state, "retired": closing_state == "completed", "is_p2p": True}
        for k, (name, fields) in enumerate(zip(names, (part, part, closing), strict=True)):
            entries.append(ENTRY | same | fields | {"profiling_name": name, "record_id": 3 * i + k, "op_id": 3 * i + k})
    return entries


def test_finished_launches_are_left_out_too(tmp_path):
    path = tmp_path / "rank_0"
    path.write_bytes(pickle.dumps(dump(launches(300)), 2))
    old, recent = records(reader.parse(path, 64))
    assert (old, recent) == ([0, 835], [*range(836, 900)])
    assert difference(DUMPS, path) == ""


@pytest.mark.parametrize("first", [0, 40])
def test_launches_are_equal_however_they_end(first, tmp_path):
    before = numbered(first)
    for inside in ({}, {"state": "started"}, {"state": "started", "profiling_name": "gloo:send", "retired": True}):
        for closing in ("completed", "started", "scheduled"):
            many = launches(200, **inside)
            ends = launches(3, closing, **inside)
            assert read(dump(before + many), tmp_path) == (True, "")
            assert read(dump(before + many[:-1]), tmp_path) == (True, "")
            assert read(dump(before + ends + many), tmp_path) == (True, "")
            assert read(dump(before + many + ends), tmp_path) == (True, "")
            assert read(dump(before + ends), tmp_path) == (True, "")


def test_launches_with_unusual_values_are_equal(tmp_path):
    for at in (0, 100, 599):
        entries = launches(200)
        entries[at]["input_sizes"] = [1.5]
        assert read(dump(entries), tmp_path) == (True, "")


def test_groups_that_end_early_are_equal(tmp_path):
    entries = numbered(300)
    for i in (0, 3, 17, 40):
        entries[i] |= {"process_group": ("1", "tp"), "pg_id": 1, "is_p2p": i == 17}
    entries[-1] |= {"state": "scheduled", "retired": False, "pg_id": 1, "process_group": ("1", "tp")}
    assert read(dump(entries), tmp_path) == (True, "")


def test_unusual_fields_are_left_to_python(tmp_path):
    for wrong in (
        {"pg_id": "0"},
        {"collective_seq_id": 1 << 62},
        {"process_group": {"0": "default_pg"}},
        {"process_group": ("0",)},
        {"is_p2p": 0},
        {"state": None},
        {"retired": 1},
        {"profiling_name": None},
    ):
        assert read(dump([*numbered(100), ENTRY | wrong, *numbered(100)]), tmp_path) == (False, ""), wrong
    assert read(dump([*numbered(100), 3]), tmp_path) == (False, "")
    assert read(b"\x80\x02cos\nsystem\n.", tmp_path) == (False, "")


def test_dumps_in_json_are_equal_with_numbers_and_texts_of_any_form(tmp_path):
    entries = numbered(200)
    entries[150] |= {
        "time_created_ns": 1_750_000_000_123_456_789,
        "duration_ms": 0.125,
        "process_group": ["1", "t\u00e9"],
    }
    entries[199] |= {"state": "started", "retired": False, "profiling_name": 'nccl:"all\\reduce"\n'}
    for content in (entries, launches(200), []):
        for indent in (None, 2):
            text = json.dumps(dump(content), indent=indent, ensure_ascii=False)
            assert read(text.encode(), tmp_path) == (True, "")
            assert read(b" \n" + text.encode() + b"\t ", tmp_path) == (True, "")


@pytest.mark.parametrize(
    "changed",
    [
        ('"line": 3', '"line": 03'), ('"line": 3', '"line": -0'), ('"line": 3', '"line": 3.'),
        ('"line": 3', '"line": NaN'), ('"line": 3', '"line": 1e3'), ('"line": 3', '"line": 18446744073709551615'),
        ("train.py", "tr\tain.py"), ("train.py", "\\u0061.py"), ("train.py", "\\x.py"),
        ('"entries": [', '"entries": [,'), ("}]", "}],"), ("{", "", 1),
        ('"entries": ', '"entries": ' + "[" * 30 + "]" * 30 + ', "entries": '),
    ],
)  # fmt: skip
def test_what_is_rare_or_wrong_in_json_is_left_to_python(changed, tmp_path):
    text = json.dumps(dump(numbered(3)))
    assert read(text.encode(), tmp_path) == (True, "")
    assert text.replace(*changed) != text
    assert read(text.replace(*changed).encode(), tmp_path) == (False, "")
    assert read(text[:-1].encode(), tmp_path) == (False, "")
    assert read((text + "1").encode(), tmp_path) == (False, "")


def test_empty_dumps_are_equal(tmp_path):
    for content in (dump([]), {}, {"entries": []}, {"entries": [], "pg_config": {"0": {"ranks": "[0, 1]"}}}):
        assert read(content, tmp_path) == (True, ""), content


def test_recent_entries_with_unusual_values_are_equal(tmp_path):
    """They are among the entries instead of in columns, or their values are special cases of a column."""
    unusual = (
        {"time_created_ns": 1_750_000_000_000_000_000, "time_discovered_completed_ns": None},
        {"time_created_ns": 1 << 62}, {"time_created_ns": -(1 << 62)}, {"timeout_ms": 1.5}, {"timeout_ms": True},
        {"record_id": None}, {"op_id": None}, {"op_id": "7"}, {"frames": None}, {"frames": ()}, {"frames": [None]},
        {"frames": {"name": "f"}}, {"frames": [{"name": None, "filename": 3, "line": "4"}, 5]}, {"frames": [{7: 8}]},
        {"input_sizes": [1.5]}, {"input_sizes": [[[[[[1]]]]]]}, {"input_sizes": ((4,), [4])}, {"input_dtypes": "Float"},
        {"output_sizes": [[1 << 62]]}, {"output_sizes": {"a": 1}}, {"output_dtypes": ["\u00e9" * 600]},
    )  # fmt: skip
    for fields in unusual:
        entries = numbered(100)
        for at in (70, 71, 99):
            entries[at] |= fields
        assert read(dump(entries), tmp_path) == (True, ""), fields
    for missing in ("record_id", "op_id", "frames", "input_sizes", "output_dtypes", "time_created_ns", "timeout_ms"):
        entries = numbered(100)
        del entries[80][missing], entries[99][missing]
        assert read(dump(entries), tmp_path) == (True, ""), missing


def test_the_lost_beginning_of_a_ring_is_equal(tmp_path):
    status = {"0": {"last_enqueued_collective": 90, "last_started_collective": 7, "last_completed_collective": 3}}
    for first, unfinished in ((0, 0), (1, 0), (1, 5), (300, 99), (300, 0)):
        entries = numbered(100)
        for entry in entries:
            entry["record_id"] += first
        for entry in entries[unfinished:]:
            entry |= {"state": "scheduled", "retired": False}
        for known in (status, {}, {"1": status["0"]}):
            assert read(dump(entries) | {"pg_status": known}, tmp_path) == (True, ""), (first, unfinished)


def test_dumps_without_names_of_groups_are_equal(tmp_path):
    for count in (3, 9, 100):
        entries = numbered(count, process_group=("", ""))
        assert read(dump(entries), tmp_path) == (True, "")
        entries[-2]["process_group"] = ("0", "default_pg")
        assert read(dump(entries), tmp_path) == (True, "")
