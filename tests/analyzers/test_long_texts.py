"""A text of megabytes in an artefact costs neither time nor a long answer, whatever the artefact; numbers stay."""

import json
import pickle
import resource
import time

import pytest

from analyzers import words
from analyzers.rooms import ask, room_for
from analyzers.run import discover
from analyzers.store import Options
from workbench.command_options.options import Format
from workbench.present import render

LONG = "x" * 2_000_000


def snapshot():
    frame = {"filename": LONG, "name": LONG, "line": 10}
    entry = {"action": "alloc", "addr": 1, "size": 512, "stream": 0, "time_us": 1, "frames": [frame]}
    return pickle.dumps({"segments": [], "device_traces": [[entry]]})


def dump(name):
    entry = {"record_id": 0, "pg_id": 0, "process_group": [name, name], "collective_seq_id": 1, "p2p_seq_id": 0}
    entry |= {"op_id": 1, "profiling_name": f"nccl:{name}", "time_created_ns": 1_700_000_000_000_000_000}
    entry |= {"frames": [{"name": name, "filename": "a.py", "line": 3}], "state": "scheduled", "timeout_ms": 1000}
    for side in ("input", "output"):
        entry |= {f"{side}_sizes": [[2]], f"{side}_dtypes": ["Float"]}
    groups = {"0": {"name": name, "desc": name, "ranks": "[0, 1]"}}
    return pickle.dumps({"version": "2.10", "entries": [entry], "pg_config": groups, "pg_status": {}})


def trace():
    kernel = {"ph": "X", "cat": "kernel", "name": LONG, "pid": 0, "tid": 7, "ts": 1, "dur": 5, "args": {}}
    step = kernel | {"cat": "user_annotation", "name": "ProfilerStep#1", "tid": 1, "dur": 20}
    call = kernel | {"cat": "python_function", "name": f"a.py(3): {LONG}", "tid": 1, "args": {"k": LONG}}
    return json.dumps({"traceEvents": [kernel, step, call], "distributedInfo": {"rank": 0}}).encode()


def steps():
    rows = ({"step": i, "time_ns": i * 10**9, "phases": {LONG: 0.1}, "loss": 1.0, "duration_s": 1.0} for i in range(3))
    return "\n".join(map(json.dumps, rows)).encode()


FAILURE = (
    f'Traceback (most recent call last):\n  File "{LONG}.py", line 3, in f\n    {LONG}\nRuntimeError: {LONG}\n'.encode()
)
RUNS = {
    "snapshot": {"memory_snapshot/iteration_1/rank0_memory_snapshot.pickle": snapshot()},
    "dumps": {"dumps/rank_0": dump(LONG), "dumps/rank_1": dump("all_reduce")},
    "trace": {"profile_traces/iteration_1/rank0_trace.json": trace()},
    "steps": {"steps/rank_0.jsonl": steps()},
    "log": {"logs/rank_0.log": FAILURE},
    "manifest": {"run.json": json.dumps({"argv": [LONG], "hosts": {"0": LONG}}).encode(), "logs/rank_0.log": FAILURE},
}


def spent():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime + time.process_time()


@pytest.mark.parametrize("files", RUNS.values(), ids=RUNS)
def test_long_texts_are_cut_early(files, tmp_path):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    run = discover(tmp_path)
    before = spent()
    report = ask(room_for(run), run, Options(cache=False, jobs=1))
    documents = [render(report, form, run) for form in Format]
    assert spent() - before < 8
    assert max(map(len, documents)) < 300_000


def test_different_texts_stay_different():
    one, two = words.bounded(LONG + "a"), words.bounded(LONG + "b")
    assert one != two
    assert "2,000,001 characters" in one
    assert words.bounded(one[:100]) == one[:100]
