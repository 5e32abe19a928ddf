"""Long traces, which are processed while they are read, give the same results and errors as short ones."""

import gc
import pickle

import numpy as np
import pytest

from analyzers.errors import InputError
from analyzers.memory.reading import reader
from analyzers.memory.reading.interning import CHUNK
from analyzers.memory.snapshot import UNTAGGED

COUNT = 3 * CHUNK + 77


def entry(number, **more):
    action = ("alloc", "free_requested", "free_completed")[number % 3]
    frames = [{"name": f"f{number % 7}", "filename": "a.py", "line": number % 5}]
    return {"action": action, "addr": number // 3, "size": number % 11, "frames": frames} | more


def saved(path, *traces, **more):
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": list(traces)} | more, protocol=4))
    return [path]


@pytest.mark.parametrize("more", [{}, {"category": "activations", "user_metadata": "layers.0"}], ids=["bare", "noted"])
def test_long_traces_of_two_devices(tmp_path, more):
    traces = [entry(n, **more) for n in range(COUNT)], [entry(n + 1, **more) for n in range(CHUNK - 1)]
    columns, meta = reader.read(saved(tmp_path / "a.pickle", *traces, segments=[]))
    assert meta["entries"] == [COUNT, CHUNK - 1]
    numbers = np.concatenate([np.arange(COUNT), np.arange(1, CHUNK)])
    assert np.array_equal(columns["size"], numbers % 11)
    assert np.array_equal(columns["addr"], numbers // 3)
    stack = columns["stack_end"][columns["stack"]] - 1
    assert np.array_equal(columns["frame_line"][columns["stack_frames"][stack]], numbers % 5)
    assert set(columns["category"].tolist()) == ({3} if more else {UNTAGGED})


def test_stacks_that_blocks_and_entries_share(tmp_path):
    """One list of frames occurs in a block, in an entry that is converted early, and in one converted late."""
    frames = [{"name": "shared", "filename": "b.py", "line": 9}]
    trace = [entry(n) for n in range(COUNT)]
    trace[5]["frames"] = trace[-1]["frames"] = frames
    block = {"address": 1, "size": 8, "requested_size": 8, "state": "active_allocated", "frames": frames}
    segments = [{"device": 0, "address": 1, "total_size": 8, "blocks": [block]}]
    columns, _ = reader.read(saved(tmp_path / "a.pickle", trace, segments=segments))
    assert columns["stack"][5] == columns["stack"][-1] == columns["block_stack"][0] != columns["stack"][6]


@pytest.mark.parametrize("wrong", [5, {"action": "alloc", "addr": "here", "size": 1}, {"action": "alloc", "size": []}])
@pytest.mark.parametrize("at", [3, CHUNK + 3, COUNT - 3])
def test_one_wrong_entry_anywhere_is_refused(tmp_path, wrong, at):
    trace = [entry(n) for n in range(COUNT)]
    trace[at] = wrong
    with pytest.raises(InputError, match="not the structure"):
        reader.read(saved(tmp_path / "a.pickle", trace))
    assert gc.get_freeze_count() == 0
