"""The native reader of Flight Recorder dumps: the same columns as the reader in Python."""

import pickle
import random

import pytest

from analyzers.hangs.reading import reader
from benchmarks.fuzzing.mutations import mutated
from benchmarks.safety.native_readers import PAIRS, LeftToPython, difference, dump_seeds

native = pytest.importorskip("torch_workbench_native", reason="not built: pip install ./analyzers/native")

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
    read_entries = reader.parse(path, 64)["entries"]
    assert [entry["record_id"] for entry in read_entries] == [0, *range(935, 1000)]
    with path.open("rb") as file:
        assert native.read_dump(file, 64)[1] == 1000 - len(read_entries)


def test_everything_from_the_first_unfinished_entry_on_is_kept(tmp_path):
    entries = numbered(400)
    entries[7] |= {"state": "started", "retired": False}
    assert read(dump(entries), tmp_path) == (True, "")
    path = tmp_path / "rank_0"
    assert [entry["record_id"] for entry in reader.parse(path, 64)["entries"]] == [0, *range(6, 400)]


def test_a_finished_launch_closes_operations_that_come_later(tmp_path):
    entries = numbered(200)
    sends = numbered(30, state="scheduled", retired=False, is_p2p=True, profiling_name="nccl:send 0->1", p2p_seq_id=9)
    entries[50] |= {"profiling_name": "nccl:coalesced", "collective_seq_id": 3, "p2p_seq_id": 9, "is_p2p": True}
    later = [send | {"collective_seq_id": 3, "record_id": 200 + i} for i, send in enumerate(sends)]
    assert read(dump([*entries, *later]), tmp_path) == (True, "")


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
        {"process_group": ["0", "default_pg"]},
        {"process_group": ("0",)},
        {"is_p2p": 0},
        {"state": None},
        {"retired": 1},
        {"profiling_name": None},
    ):
        assert read(dump([*numbered(100), ENTRY | wrong, *numbered(100)]), tmp_path) == (False, ""), wrong
    assert read(dump([*numbered(100), 3]), tmp_path) == (False, "")
    assert read(b"\x80\x02cos\nsystem\n.", tmp_path) == (False, "")


def test_empty_dumps_are_equal(tmp_path):
    for content in (dump([]), {}, {"entries": []}, {"entries": [], "pg_config": {"0": {"ranks": "[0, 1]"}}}):
        assert read(content, tmp_path) == (True, ""), content
