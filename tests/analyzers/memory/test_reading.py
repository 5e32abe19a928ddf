"""Every format of a snapshot gives the same result; other files are refused, within limits of time and memory."""

import gzip
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzers import child, memory
from analyzers.errors import HostileInput, InputError, LimitExceeded, WorkbenchError
from analyzers.memory.reading import reader


def peak(artefact):
    [device] = memory.analyze([artefact]).data.devices
    return device.start_allocated_bytes, device.peak_allocated_bytes, device.peak_index, device.end_allocated_bytes


@pytest.mark.parametrize("name", ["a.pickle.gz", "a.json", "a.json.gz"])
def test_pickle_json_and_gzip_say_the_same(maker, name):
    snapshot = maker.wander(5).snapshot()
    plain, other = maker.save(snapshot), maker.save(snapshot, name)
    assert peak(plain) == peak(other)
    stacks = [memory.analyze([artefact]).data.devices[0].top_stacks for artefact in (plain, other)]
    assert stacks[0] == stacks[1]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_is_read(maker, protocol):
    artefact = maker.save(snapshot := maker.wander(5).snapshot())
    expected = peak(artefact)
    artefact.path.write_bytes(pickle.dumps(snapshot, protocol=protocol))
    assert peak(artefact) == expected


def test_a_bare_list_of_segments_is_the_state(maker):
    [device] = memory.analyze([maker.save([maker.wander(5).segment()])]).data.devices
    assert device.entries == 0
    assert device.start_allocated_bytes == device.peak_allocated_bytes == device.end_allocated_bytes > 0


def test_blocks_of_torch_2_0_have_a_history_and_no_address(maker):
    made = maker.wander(5)
    segment = made.segment()
    for block in segment["blocks"]:
        frames = block.pop("frames")
        del block["address"]
        if block["state"] != "inactive":
            block["history"] = [{"addr": 0, "frames": frames, "real_size": block.pop("requested_size")}]
    assert peak(maker.save(made.snapshot() | {"segments": [segment]})) == peak(maker.save(made.snapshot(), "b.pickle"))


def test_unknown_actions_and_keys_are_passed_by(maker):
    snapshot = maker.wander(5).snapshot()
    expected = peak(maker.save(snapshot))
    for entry in snapshot["device_traces"][0]:
        entry["of_2030"] = [1]
    snapshot["device_traces"][0].append({"action": "teleport", "addr": 1, "size": 5, "pool_id": (0, 0)})
    assert peak(maker.save(snapshot, "b.pickle")) == expected


def test_a_pending_free_is_still_allocated(maker):
    made = maker.Recording()
    address = made.alloc(1000)
    snapshot = made.snapshot()
    snapshot["segments"][0]["blocks"][0]["state"] = "active_pending_free"
    made.write("free_requested", address, 1000, [])
    [device] = memory.analyze([maker.save(snapshot)]).data.devices
    assert (device.end_allocated_bytes, device.consistent) == (1000, True)


EXECUTED = Path(tempfile.gettempdir(), f"executed-{uuid.uuid4()}")
"""The file that a hostile pickle makes if its code runs."""


class Evil:
    def __reduce__(self):
        return os.system, (f"touch {EXECUTED}",)


def nested(depth):
    return b"\x80\x04" + b"]" * depth + b"a" * (depth - 1) + b"."


def laughing():
    lists = ["ha"] * 10
    for _ in range(60):
        lists = [lists] * 10
    return {"segments": [], "device_traces": lists}


def endless():
    trace = []
    trace.append(trace)
    return {"segments": [], "device_traces": trace}


def shared():
    trace = [{"action": "alloc", "addr": 1, "size": 1}] * 1000
    return {"segments": [], "device_traces": [trace] * 1000}


def with_entry(**entry):
    return {"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 1} | entry]]}


HOSTILE = {
    "imports": pickle.dumps({"segments": [Evil()], "device_traces": []}),
    "memo of 2 GB": b"\x80\x04]r\x00\x00\x00\x7f.",
    "frame of an exabyte": b"\x80\x04\x95" + b"\xff" * 7 + b"\x0f" + b"].",
    "bytes of an exabyte": b"\x80\x04\x8e" + b"\xff" * 7 + b"\x0f" + b".",
    "extension": b"\x80\x04\x82\x01.",
    "persistent id": b"\x80\x04K\x01Q.",
    "two million deep": nested(2_000_000),
    "laughing": pickle.dumps(laughing(), protocol=4),
    "lists itself": pickle.dumps(endless(), protocol=4),
    "one list in many places": pickle.dumps(shared(), protocol=4),
    "huge address": pickle.dumps(with_entry(addr=1 << 4000)),
    "huge size": pickle.dumps(with_entry(size=(1 << 63) - 1)),
    "negative size": pickle.dumps(with_entry(size=-5)),
    "size is a list": pickle.dumps(with_entry(size=[])),
    "not a number": pickle.dumps(with_entry(size=float("nan"))),
    "name is a number": pickle.dumps(with_entry(frames=[{"name": 5}])),
    "frames are text": pickle.dumps(with_entry(frames="oops")),
    "action is a list": pickle.dumps(with_entry(action=[])),
    "entries are numbers": pickle.dumps({"segments": [], "device_traces": [[1, 2]]}),
    "a number": pickle.dumps(5),
    "settings are a list": pickle.dumps({"segments": [], "device_traces": [], "allocator_settings": [1]}),
    "pool of three": pickle.dumps(with_entry(pool_id=(1, 2, 3))),
    "huge stream": pickle.dumps(with_entry(stream=1 << 80)),
    "blocks are missing": pickle.dumps({"segments": [{"device": 0}]}),
    "tags are numbers": pickle.dumps({"segments": [], "workbench": {"blocks": {1: 5}}}),
    "deep JSON": b'{"segments": ' + b"[" * 100_000,
    "no JSON": b'{"segments": nope}',
    "damaged gzip": b"\x1f\x8b\x08\x00rubbish rubbish rubbish",
    "nothing": b"",
}


@pytest.mark.parametrize("sample", HOSTILE)
def test_hostile_files_are_refused_within_bounds(maker, sample):
    artefact = maker.save({}, "a.pickle")
    artefact.path.write_bytes(HOSTILE[sample])
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    with pytest.raises(InputError) as caught:
        memory.analyze([artefact])
    assert caught.value.hint
    assert "Traceback" not in caught.value.message
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - began.ru_utime < 30
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 1100 << 10, "KiB of the largest child so far"
    assert not EXECUTED.exists()


def test_code_is_called_hostile(maker):
    artefact = maker.save({}, "a.pickle")
    artefact.path.write_bytes(HOSTILE["imports"])
    with pytest.raises(HostileInput, match="asks to import"):
        memory.analyze([artefact])


def test_colliding_keys_end_at_the_processor_limit(tmp_path):
    step = (1 << 61) - 1
    body = b"".join(pickle.dumps(i * step, protocol=2)[2:-1] + b"K\x00" for i in range(1, 60_000))
    assert hash(step) == hash(2 * step)
    path = tmp_path / "a.pickle"
    path.write_bytes(b"\x80\x02}(" + body + b"u.")
    task = child.Task("analyzers.memory.reading.reader", tmp_path, [path], memory=1 << 30, seconds=2)
    assert isinstance(child.explain(child.run_in_new_interpreter(task), task), LimitExceeded)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 50), data=st.data())
def test_damaged_bytes_are_refused_or_read_but_never_crash(maker, seed, data):
    whole = pickle.dumps(maker.wander(seed, 20).snapshot(), protocol=4)
    cut = data.draw(st.integers(1, len(whole) - 1))
    path = maker.folder / "a.pickle"
    path.write_bytes(whole[:cut])
    with pytest.raises(WorkbenchError):
        reader.read([path])
    # Not LONG_BINPUT, which takes gigabytes: that is for the limits of the child, which this test goes without.
    position = data.draw(st.integers(2, len(whole) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda byte: byte != ord("r")))
    path.write_bytes(whole[:position] + bytes([value]) + whole[position + 1 :])
    try:
        columns, _ = reader.read([path])
    except (WorkbenchError, MemoryError):
        return
    assert len(columns["action"]) == len(columns["addr"])


def with_pools(made):
    """Return the snapshot as torch 2.12 and newer write it: each entry names its pool."""
    return made | {
        "device_traces": [[entry | {"pool_id": (0, 0)} for entry in trace] for trace in made["device_traces"]]
    }


def without_times(made):
    """Return the snapshot as torch before 2.2 wrote it, with a vendor's name for the settings."""
    traces = [
        [{k: v for k, v in entry.items() if k != "time_us"} for entry in trace] for trace in made["device_traces"]
    ]
    return made | {"device_traces": traces, "allocator_settings": {"PYTORCH_MUSA_ALLOC_CONF": "", "x": [[]]}}


def told_overflow(made):
    return made | {"allocator_settings": {"trace_alloc_overflowed": True, "trace_alloc_max_entries": 5}}


def from_an_xpu(made):
    """Return the snapshot as torch.xpu writes it: without segment pools and settings."""
    bare = [{k: v for k, v in segment.items() if k != "segment_pool_id"} for segment in made["segments"]]
    return {"segments": bare, "device_traces": made["device_traces"]}


@pytest.mark.parametrize("age", [with_pools, without_times, told_overflow, from_an_xpu])
@pytest.mark.parametrize("name", ["a.pickle", "a.json"])
def test_every_age_of_the_schema_says_the_same(maker, oracle, age, name):
    snapshot = maker.wander(8).snapshot()
    assert (*peak(maker.save(age(snapshot), name)), peak(maker.save(snapshot, "b.pickle"))[3]) == oracle(snapshot, 0)


def test_each_device_of_a_file_is_answered(maker, oracle):
    made = [maker.wander(seed, 80, device=seed) for seed in range(3)]
    snapshot = {"segments": [one.segment() for one in made], "device_traces": [one.entries for one in made]}
    devices = memory.analyze([maker.save(snapshot)]).data.devices
    assert [device.device for device in devices] == [0, 1, 2]
    for device in devices:
        found = (device.start_allocated_bytes, device.peak_allocated_bytes, device.peak_index)
        assert found == oracle(snapshot, device.device)[:3]


@pytest.mark.parametrize("seed", range(4))
def test_mutated_snapshots_are_answered_or_refused(maker, seed):
    """Bytes are changed, dropped and repeated anywhere in a file, which is read under a limit on memory."""
    program = (
        "import random, resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
        "from pathlib import Path\n"
        "from analyzers.errors import WorkbenchError\n"
        "from analyzers.memory import digest\n"
        "dice, path = random.Random(int(sys.argv[2])), Path(sys.argv[1])\n"
        "whole = path.read_bytes()\n"
        "for _ in range(60):\n"
        "    data, at = bytearray(whole), dice.randrange(2, len(whole))\n"
        "    start = dice.randrange(len(whole))\n"
        "    data[at:at + dice.randrange(6)] = whole[start:start + dice.randrange(9)]\n"
        "    path.write_bytes(data)\n"
        "    try:\n"
        "        digest.read([path])\n"
        "    except (WorkbenchError, MemoryError):\n"
        "        pass\n"
    )
    path = maker.save(maker.wander(seed, 60).snapshot()).path
    environment = os.environ | {"PYTHONPATH": str(child.PACKAGE_ROOT), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, str(path), str(seed)]
    ended = subprocess.run(command, capture_output=True, check=False, env=environment, timeout=240)
    assert ended.returncode == 0, ended.stderr.decode()


class JitPickler:
    """Writes pickle opcodes like PyTorch's C++ code: protocol 2, every text memoised, each list or dict in a single
    batch.
    """

    def __init__(self):
        self.memo, self.count, self.out = {}, 0, bytearray(b"\x80\x02")

    def put(self):
        self.out += b"q" + bytes([self.count]) if self.count < 256 else b"r" + self.count.to_bytes(4, "little")
        self.count += 1

    def get(self, place):
        self.out += b"h" + bytes([place]) if place < 256 else b"j" + place.to_bytes(4, "little")

    def push(self, value):
        kinds = {
            str: self.text,
            bool: self.flag,
            int: self.number,
            list: self.batch,
            tuple: self.batch,
            dict: self.batch,
        }
        kinds.get(type(value), self.batch)(value)
        return self

    def text(self, value):
        if value in self.memo:
            return self.get(self.memo[value])
        self.out += b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()
        self.memo[value] = self.count
        return self.put()

    def flag(self, value):
        self.out += b"\x88" if value else b"\x89"

    def number(self, value):
        if 0 <= value < 1 << 8:
            self.out += b"K" + bytes([value])
        elif 0 <= value < 1 << 16:
            self.out += b"M" + value.to_bytes(2, "little")
        elif -(1 << 31) <= value < 1 << 31:
            self.out += b"J" + value.to_bytes(4, "little", signed=True)
        else:
            self.out += b"\x8a\x08" + value.to_bytes(8, "little", signed=True)

    def batch(self, value):
        before, after = {list: (b"]", b"e"), dict: (b"}", b"u"), tuple: (b"", b"t")}[type(value)]
        self.out += before
        if before:
            self.put()
        self.out += b"("
        for part in (x for item in value.items() for x in item) if type(value) is dict else value:
            self.push(part)
        self.out += after


@pytest.mark.parametrize("gz", [False, True])
def test_what_the_writer_in_c_plus_plus_leaves(maker, oracle, gz):
    snapshot = maker.wander(4, 900).snapshot()
    artefact = maker.save({}, "a.pickle.gz" if gz else "a.pickle")
    written = bytes(JitPickler().push(snapshot).out + b".")
    assert pickle.loads(written) == snapshot
    assert (b"r\x00\x01\x00\x00" in written, b"j" in written) == (True, True), "more than 256 objects"
    artefact.path.write_bytes(gzip.compress(written) if gz else written)
    assert (*peak(artefact), oracle(snapshot, 0)[4]) == oracle(snapshot, 0)
