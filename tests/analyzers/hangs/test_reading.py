"""Read every format and folder layout of dumps, and the other files next to them."""

import gzip
import json
import os
import pickle
import signal
import time

import pandas as pd
import pytest

from analyzers import run
from analyzers.errors import InputError
from analyzers.hangs import analyze, views
from analyzers.hangs.model import Frame, user_frame
from analyzers.hangs.reading.exits import is_victim, read_gloo_sizes
from analyzers.hangs.reading.side_formats import ExitFile

PG = ("0", "default_pg")
GROUPS = {"0": ("default_pg", [0, 1])}


@pytest.fixture
def pair(recorder):
    """Return the dumps of two ranks, of which rank 1 never joins operation 3."""
    return {
        0: recorder.dump([recorder.entry(PG, 2), recorder.entry(PG, 3, done=False)], GROUPS),
        1: recorder.dump([recorder.entry(PG, 2)], GROUPS),
    }


@pytest.mark.parametrize(
    "name", ["rank_{}", "nccl_trace_rank_{}", "comm_lib_trace_rank_{}", "node-7.host_rank{}", "{}"]
)
def test_file_names(folder, pair, name):
    report = folder.write(pair, name=name).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("host_stuck", [1])


@pytest.mark.parametrize("form", ["pickle", "json", "pickle.gz"])
def test_forms(folder, pair, recorder, form):
    forms = {
        "pickle": pickle.dumps,
        "json": recorder.as_json,
        "pickle.gz": lambda content: gzip.compress(pickle.dumps(content)),
    }
    report = folder.write(pair, name="rank_{}." + form, form=forms[form]).report()
    assert report.verdict.ranks == [1]
    assert report.data.ranks_with_dump == [0, 1]
    assert bool([m for m in report.verdict.missing if "no stacks" in m]) == (form == "json")


def test_a_saved_page_of_the_debug_server(folder, pair, recorder):
    """The JSON view of the page has the dumps of all ranks."""
    shown = "".join(
        f"<h2>Rank {rank}: http://node:29/handler/fr_trace_json?</h2>\n\n<pre>{recorder.as_json(dump).decode()}</pre>"
        for rank, dump in pair.items()
    )
    lost = "<h2>Rank 2: http://node:30</h2><p>Failed to fetch: status=408</p><pre>Timeout: x</pre>"
    report = folder.side("fr_trace_json.html", f"\n<!doctype html>\n<html>{shown}{lost}</html>").report()
    assert (report.verdict.kind, report.verdict.ranks) == ("host_stuck", [1])
    assert report.data.ranks_with_dump == [0, 1]


@pytest.mark.parametrize("version", ["2.1", "2.4", "2.9"])
def test_older_schemas(folder, pair, version):
    for content in pair.values():
        content["version"] = version
        for one in content["entries"]:
            for key in ("timeout_ms", "retired") if version == "2.1" else ():
                del one[key]
            one["collective_seq_id"] = str(one["collective_seq_id"])
            one["input_dtypes"] = "Float"
        if version == "2.1":
            del content["pg_status"]
    assert folder.write(pair).report().verdict.ranks == [1]


def test_gloo_is_done_when_retired_and_its_group_map_is_not_believed(folder, recorder):
    def gloo(done):
        content = recorder.dump(
            [recorder.entry(PG, 1, backend="gloo"), recorder.entry(PG, 2, backend="gloo", done=done)], {}
        )
        return content | {"pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}}}

    other = recorder.dump([recorder.entry(PG, 1, backend="gloo")], {})
    folder.write({0: gloo(done=False), 1: other})
    inferred = folder.report()
    assert inferred.verdict.ranks == [1]
    assert inferred.data.groups[0].source == "entries"
    for rank in range(2):
        folder.side(
            f"groups_{rank}.json",
            {"rank": rank, "world_size": 2, "groups": {"0": {"desc": "default_pg", "ranks": [0, 1]}}},
        )
    assert folder.report().data.groups[0].source == "side file"


def test_nccl_that_retired_without_completing_timed_out(folder, recorder):
    hung = recorder.dump([recorder.entry(PG, 1, done=False, retired=True)], GROUPS)
    assert folder.write({0: hung, 1: hung}).report().verdict.kind == "all_arrived"


def test_a_truncated_dump_is_named_and_the_rest_is_analysed(folder, pair):
    folder.write(pair)
    whole = (folder.path / "rank_1").read_bytes()
    (folder.path / "rank_1").write_bytes(whole[: len(whole) // 2])
    report = folder.report()
    assert (report.verdict.kind, report.verdict.ranks, report.data.culprits[0].ranks) == ("unknown", [], [1])
    assert "nothing shows whether it is a culprit or a victim" in report.verdict.sentence
    assert report.data.ranks_with_dump == [0]
    assert any("unreadable" in m for m in report.verdict.missing)
    assert "hang.unreadable_dump" in [f.id for f in report.findings]


@pytest.mark.parametrize("damage", ["empty", "a pipe", "not copied"])
def test_a_rank_whose_dump_was_written_and_is_lost_is_not_called_dead(folder, pair, recorder, damage):
    """Only its own dump shows what it waited for: it may be a victim as well."""
    folder.write(pair).side("collection.json", collection(recorder, {0: "ok", 1: "ok"}))
    path = folder.path / "rank_1"
    path.unlink()
    if damage != "not copied":
        (os.mkfifo if damage == "a pipe" else os.mknod)(path)
    report = folder.report()
    assert (report.verdict.status, report.verdict.kind, report.verdict.ranks) == ("unknown", "unknown", [])
    assert "The dump of rank 1 is missing or cannot be read" in report.verdict.sentence
    assert report.data.culprits[0].victims == [0]
    assert ("no dump of rank 1: it was written, but is not here" in report.verdict.missing) is (damage == "not copied")
    assert ("hang.unreadable_dump" in {finding.id for finding in report.findings}) is (damage != "not copied")


class Bomb:
    def __reduce__(self):
        return os.system, ("touch /tmp/never",)


def test_code_in_a_dump_is_refused_and_the_rest_is_analysed(folder, pair):
    folder.write(pair)
    (folder.path / "rank_0").write_bytes(pickle.dumps({"pg_config": {}, "pg_status": {}, "entries": [Bomb()]}))
    report = folder.report()
    assert report.data.ranks_with_dump == [1]
    assert any("import" in m for m in report.verdict.missing)


def test_odd_values_do_no_harm(folder, recorder):
    odd = recorder.dump(
        [
            recorder.entry(
                PG,
                1,
                op="[/]<script>",
                done=False,
                collective_seq_id=None,
                input_sizes="x",
                frames=[1, {"line": "x"}],
            ),
            recorder.entry(("a", "b", "c"), 1 << 80, time_created_ns="soon", record=1),
            7,
        ],
        GROUPS,
    )
    odd["pg_config"]["1"] = 5
    odd["pg_status"] = {"0": 3}
    report = folder.write({0: odd, 1: odd}).report()
    assert report.data.ranks_with_dump == [0, 1]
    assert json.loads(report.json())["schema"] == "workbench.hang/1"


def test_detail_mode_is_recognised(folder, recorder):
    content = recorder.dump([recorder.entry(("", ""), 1)], {})
    report = folder.write({0: content, 1: content}).report()
    assert report.verdict.status == "unknown"
    assert any("DETAIL" in m for m in report.verdict.missing)


def test_only_one_of_many_dumps_accuses_nobody(folder, recorder):
    groups = {"0": ("default_pg", range(8))}
    report = folder.write({0: recorder.dump([recorder.entry(PG, 1, done=False)], groups)}).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("unknown", [])


def test_an_empty_folder_is_an_input_error(tmp_path):
    (tmp_path / "rank_0").write_bytes(b"\x80\x02}q\x00X\x09\x00\x00\x00pg_config")
    with pytest.raises(InputError):
        analyze(run.discover(tmp_path))


def collection(recorder, statuses, *, reason="stalled", heartbeats=None, after_ms=60_000):
    ranks = {
        str(rank): {
            "status": status,
            "channel": "pickle" if status == "ok" else None,
            "asked_ns": recorder.start_ns + after_ms * 1_000_000,
            "answered_ns": recorder.start_ns + after_ms * 1_000_000 if status == "ok" else None,
            "exit_code": None,
            "heartbeat": {"step": 6, "phase": "data_wait", "time_ns": 1},
        }
        for rank, status in statuses.items()
    }
    return {"reason": reason, "asked_ns": recorder.start_ns, "rounds": [{"round": 1, "asked_ns": 1, "ranks": ranks}]}


@pytest.mark.parametrize(
    ("status", "kind"), [("timeout", "host_stuck"), ("exited", "dead"), ("refused", "dead"), ("unregistered", "dead")]
)
def test_why_there_is_no_dump(folder, pair, recorder, status, kind):
    folder.write({0: pair[0]}).side("collection.json", collection(recorder, {0: "ok", 1: status}))
    report = folder.report()
    assert (report.verdict.kind, report.verdict.ranks) == (kind, [1])
    assert report.data.culprits[0].step == 6


def test_a_signal_names_the_dead_rank(folder, pair):
    folder.write({0: pair[0]})
    (folder.path.parent / "run.json").write_text(
        json.dumps({"world_size": 2, "exit_codes": {"0": -signal.SIGTERM, "1": -9}})
    )
    report = folder.report()
    assert (report.verdict.kind, report.verdict.ranks) == ("dead", [1])
    assert "killed by signal 9" in report.verdict.sentence


def test_out_of_memory_makes_one_rank_the_culprit_and_the_others_victims(folder, pair, recorder):
    folder.write(pair).side("collection.json", collection(recorder, {0: "ok", 1: "ok"}, reason="failed"))
    oom = {
        "rank": 1,
        "step": 6,
        "error": "OutOfMemoryError",
        "message": "no",
        "out_of_memory": True,
        "time_ns": recorder.start_ns,
    }
    lost = {
        "rank": 0,
        "error": "RuntimeError",
        "message": "Connection closed by peer",
        "time_ns": recorder.start_ns + 10**12,
    }
    folder.side("exit_1.json", oom).side("exit_0.json", lost)
    report = folder.report()
    culprit = report.data.culprits[0]
    assert (report.verdict.kind, report.verdict.ranks, culprit.out_of_memory) == ("dead", [1], True)
    # The reader may run `inspect` on the folder already, so the advice is about the snapshot.
    assert "`workbench inspect SNAPSHOT`" in report.findings[0].next
    assert culprit.victims == [0]


def test_the_stack_names_the_line_that_is_stuck(folder, pair):
    stack = (
        'Thread 0x1 (most recent call first):\n  File "/usr/lib/python3.11/threading.py", line 5 in run\n\n'
        'Thread 0x2 (most recent call first):\n  File "/home/me/data/text.py", line 41 in tokenize\n'
        '  File "/home/me/train.py", line 9 in <module>\n'
    )
    report = folder.write(pair).side("stacks_1.txt", stack).report()
    assert "tokenize (data/text.py:41)" in report.verdict.sentence
    shown = views.stacks(run.discover(folder.path))
    row = shown[shown["name"] == "tokenize"].iloc[0]
    assert (row["depth"], row["ranks"]) == (1, [1])


def test_no_stacks_without_libraries_are_no_stacks():
    none = pd.DataFrame([], columns=["depth", "name", "own"])
    assert views.without_libraries(none).columns.tolist() == ["depth", "name", "own"]
    assert views.without_libraries(none).empty


def test_stacks_without_libraries_keep_the_frames_that_end_them():
    rows = [
        (0, "main", True), (1, "call", False), (2, "forward", True), (3, "silu", False),
        (1, "step", True), (2, "wrapper", False), (3, "wait", False),
    ]  # fmt: skip
    left = views.without_libraries(pd.DataFrame(rows, columns=["depth", "name", "own"]))
    rows = [*zip(left["depth"], left["name"], strict=True)]
    assert rows == [(0, "main"), (1, "forward"), (2, "silu"), (1, "step"), (2, "wait")]


def test_py_spy_stacks_are_read_too(folder, pair):
    stack = 'Process 9: python train.py\nThread 9 (idle): "MainThread"\n    read (data/io.py:7)\n'
    assert "read (data/io.py:7)" in folder.write(pair).side("stacks_1.txt", stack).report().verdict.sentence


def test_native_frames_are_shown_and_not_blamed(folder, pair):
    stack = (
        'Process 9: python train.py\nThread 9 (active): "MainThread"\n    clock_nanosleep (libc.so.6)\n'
        "    at::native::add (BinaryOps.cpp:77)\n    read (data/io.py:7)\n    <module> (train.py:9)\n"
        "    __libc_start_main (libc.so.6)\n"
    )
    report = folder.write(pair).side("stacks_1.txt", stack).report()
    assert "stuck in read (data/io.py:7)" in report.verdict.sentence
    assert "rank 1 is in read(), called by <module>" in [fact.text for fact in report.findings[0].evidence]
    shown = views.stacks(run.discover(folder.path))
    assert [(row["name"], row["place"]) for _, row in shown[shown["depth"] == 4].iterrows()] == [
        ("clock_nanosleep", "libc.so.6")
    ]


RECORDERS_STACK = [("ask", "recorders/dump.py", 5), ("main", "t.py", 2), ("<module>", "t.py", 9)]
STUCK_STACK = [("hold", "t.py", 5), ("main", "t.py", 9)]


@pytest.mark.parametrize(
    ("stack", "raised", "shown"),
    [
        (RECORDERS_STACK, [("forward", "model.py", 7), ("main", "t.py", 1)], ["<module>", "main", "forward"]),
        (STUCK_STACK, [("all_reduce", "t.py", 7), ("main", "t.py", 9)], ["main", "hold"]),
    ],
    ids=["the stack is of the end", "the rank was stuck and ended much later because another gave up"],
)
def test_the_stack_of_a_rank_that_raised_is_that_of_the_exception_unless_it_is_older(
    folder, pair, stack, raised, shown
):
    lines = (f'  File "/job/{file}", line {line} in {name}\n' for name, file, line in stack)
    frames = [{"name": name, "filename": f"/job/{file}", "line": line} for name, file, line in raised]
    ended = {"schema": "workbench.exit/1", "rank": 1, "pid": 9, "error": "ValueError", "traceback": frames}
    folder.write(pair).side("stacks_1.txt", "Thread 0x1 (most recent call first):\n" + "".join(lines))
    table = views.stacks(run.discover(folder.side("exit_1.json", ended).path))
    mine = table[table["ranks"].map(lambda ranks: 1 in ranks)]
    assert mine["name"].tolist() == shown


def test_how_long_a_rank_is_in_its_phase_and_whether_it_was_slow_before(folder, pair, recorder):
    told = seen_in(collection(recorder, {0: "ok", 1: "ok"}), (6, "fwd"))
    told["rounds"][0]["ranks"]["1"]["heartbeat"]["time_ns"] = recorder.start_ns
    folder.write(pair).side("collection.json", told)
    steps = type(folder)(folder.path.parent / "steps")
    took = [9.0, *[0.2] * 6, *[0.9] * 3]
    header = json.dumps({"schema": "workbench.steps/1", "rank": 1})
    lines = [json.dumps({"step": n, "dur_ns": int(s * 1e9)}) for n, s in enumerate(took, 1)]
    steps.side("rank_1.jsonl", "\n".join([header, *lines, '{"step": 11, "dur']))
    facts = [fact.text for fact in analyze(run.discover(folder.path.parent)).findings[0].evidence]
    slow = "each of its last 3 steps took 900 ms, earlier ones 200 ms"
    assert f"rank 1 last reported progress 60.0 s before it wrote its dump; {slow}" in facts


def worker(tmp_path, folder, attempt, rank):
    return type(folder)(tmp_path / f"logs/run_x/attempt_{attempt}/{rank}")


def test_what_torchrun_says_of_an_end(tmp_path, folder, pair):
    """There is no exit file of ours, and the error of an earlier attempt does not count."""
    folder.write(pair)
    callstack = 'File "/home/me/train.py", line 9, in <module>\n File "/home/me/data.py", line 3, in load\n'
    told = {"message": "ValueError: no tokens\n", "extraInfo": {"py_callstack": callstack, "timestamp": "1600000000"}}
    worker(tmp_path, folder, 0, 0).side("error.json", {"message": told | {"message": "KeyError: 'x'"}})
    worker(tmp_path, folder, 1, 1).side("error.json", {"message": told})
    report = analyze(run.discover(tmp_path))
    assert (report.verdict.kind, report.verdict.ranks) == ("dead", [1])
    assert "ValueError: no tokens in load (me/data.py:3)" in report.verdict.sentence


HINTED = "step-2 holds the weights of llama3 debugmodel\nhint: choose that model, or another checkpoint"


@pytest.mark.parametrize("through", ["error.json", "exit_1.json"])
def test_the_next_step_is_the_hint_of_the_error_that_ended_a_rank(tmp_path, folder, pair, through):
    folder.write(pair)
    if through == "error.json":
        told = {"message": f"CheckpointError: {HINTED}", "extraInfo": {"timestamp": "1600000000"}}
        worker(tmp_path, folder, 0, 1).side("error.json", {"message": told})
    else:
        folder.side("exit_1.json", {"schema": "workbench.exit/1", "rank": 1, "error": "CheckpointError",
                                    "message": HINTED, "time_ns": 1_600_000_000_000_000_000})  # fmt: skip
    report = analyze(run.discover(tmp_path))
    assert "CheckpointError: step-2 holds the weights of llama3 debugmodel" in report.verdict.sentence
    assert "hint" not in report.verdict.sentence
    assert report.findings[0].next.startswith("Choose that model, or another checkpoint")


def test_the_log_of_a_killed_rank_is_quoted(tmp_path, folder, pair):
    folder.write({0: pair[0]})
    (tmp_path / "run.json").write_text(json.dumps({"world_size": 2, "exit_codes": {"0": -15, "1": -11}}))
    worker(tmp_path, folder, 0, 1).side("stderr.log", "\x1b[31mwarming up\x1b[0m\n\nSegmentation fault: address 0x0\n")
    facts = [fact.text for fact in analyze(run.discover(tmp_path)).findings[0].evidence]
    assert "the log of rank 1 ends with: warming up | Segmentation fault: address 0x0" in facts


def test_a_healthy_job_dumped_at_different_times(folder, recorder):
    """Rank 1's dump was taken before rank 0 began the operation, so rank 1 is not missing in it."""
    ahead = recorder.dump([recorder.entry(PG, 1), recorder.entry(PG, 2, record=90_000, done=False)], GROUPS)
    behind = recorder.dump([recorder.entry(PG, 1)], GROUPS)
    folder.write({0: ahead, 1: behind}).side(
        "collection.json", collection(recorder, {0: "ok", 1: "ok"}, reason="asked")
    )
    assert folder.report().verdict.kind == "healthy"


def test_a_set_taken_after_ranks_gave_up_is_passed_by(folder, pair, recorder):
    folder.write(pair).side("collection.json", collection(recorder, {0: "ok", 1: "ok"}))
    gave_up = recorder.start_ns + 61_000 * 1_000_000
    folder.side("exit_0.json", {"rank": 0, "error": "RuntimeError", "message": "Timed out waiting", "time_ns": gave_up})
    later = type(folder)(folder.path / "set_2").write({1: recorder.dump([], GROUPS)})
    late = collection(recorder, {1: "ok"}) | {"asked_ns": gave_up + 1}
    later.side("collection.json", late)
    report = folder.report()
    assert report.verdict.ranks == [1]
    assert report.data.ranks_with_dump == [0, 1]


def stack_in(name):
    return f'Current thread 0x1 (most recent call first):\n  File "/home/me/job/{name}.py", line 7 in {name}\n'


def test_the_stack_is_of_the_set_that_shows_the_hang(folder, pair, recorder):
    """When the second set was taken, rank 0 had given up and rank 1 was elsewhere; the first set has the stack."""
    folder.write(pair).side("collection.json", collection(recorder, {0: "ok", 1: "ok"}))
    type(folder)(folder.path / "round_2").write(pair).side("stacks_1.txt", stack_in("tokenize"))
    gave_up = recorder.start_ns + 61_000 * 1_000_000
    folder.side("exit_0.json", {"rank": 0, "error": "RuntimeError", "message": "Timed out waiting", "time_ns": gave_up})
    later = type(folder)(folder.path / "set_2").write({1: pair[1]}).side("stacks_1.txt", stack_in("forward"))
    later.side("collection.json", collection(recorder, {1: "ok"}) | {"asked_ns": gave_up + 1})
    assert "stuck at step 6 in tokenize (job/tokenize.py:7)" in folder.report().verdict.sentence


def seen_in(told, *places):
    """Return a collection document whose rounds find rank 0 in these (step, phase) positions."""
    [look] = told["rounds"]
    beats = [{"step": step, "phase": phase, "time_ns": 1} for step, phase in places]
    looks = [look | {"round": n, "ranks": look["ranks"] | {"0": look["ranks"]["0"] | {"heartbeat": beat}}}
             for n, beat in enumerate(beats, 1)]  # fmt: skip
    return told | {"rounds": looks}


def test_a_hang_that_began_between_two_rounds(folder, pair, recorder):
    """In the first round the ranks are only slow, at other positions than where rank 0 gave up later."""
    folder.write({rank: recorder.dump([recorder.entry(PG, 1)], GROUPS) for rank in range(2)})
    folder.side("collection.json", seen_in(collection(recorder, {0: "ok", 1: "ok"}), (5, "bwd"), (6, "fwd")))
    assert folder.report().verdict.kind == "healthy"
    gave_up = recorder.start_ns + 61_000 * 1_000_000
    timeout = {"rank": 0, "step": 6, "phase": "fwd", "error": "RuntimeError", "message": "Timed out waiting"}
    folder.side("exit_0.json", timeout | {"time_ns": gave_up})
    type(folder)(folder.path / "round_2").write(pair)
    report = folder.report()
    assert (report.verdict.kind, report.verdict.ranks) == ("host_stuck", [1])
    assert views.matrix(run.discover(folder.path)).loc[1].tolist() == ["done", "missing"]


def test_a_rank_that_gave_up_keeps_a_job_from_being_called_healthy(folder, recorder):
    folder.write({rank: recorder.dump([recorder.entry(PG, 1)], GROUPS) for rank in range(2)})
    folder.side("exit_0.json", {"rank": 0, "error": "RuntimeError", "message": "Timed out", "time_ns": 1 << 62})
    report = folder.report()
    assert (report.verdict.kind, report.verdict.ranks) == ("unknown", [])
    assert "Rank 0 gave up waiting (RuntimeError: Timed out)" in report.verdict.sentence


def test_a_set_taken_after_the_watchdog_ended_a_rank_is_passed_by(folder, pair, recorder):
    """NCCL's watchdog ends a waiting rank without a message: only the timeout shows that the rank is a victim."""
    stalled = collection(recorder, {0: "ok", 1: "ok"}) | {"stalled_s": 40.0, "timeout_s": 100.0}
    folder.write(pair).side("collection.json", stalled)
    died = collection(recorder, {0: "exited", 1: "ok"}, reason="died")
    later = type(folder)(folder.path / "set_2").write({1: pair[1]})
    later.side("collection.json", died | {"asked_ns": recorder.start_ns + 61 * 10**9})
    assert (folder.report().verdict.kind, folder.report().verdict.ranks) == ("host_stuck", [1])
    later.side("collection.json", died | {"asked_ns": recorder.start_ns + 59 * 10**9})
    assert (folder.report().verdict.kind, folder.report().verdict.ranks) == ("dead", [0])


@pytest.mark.parametrize(
    ("error", "message", "file", "kind"),
    [
        ("RuntimeError", "[/gloo/transport/tcp/pair.cc:553] Connection closed by peer", "/home/me/train.py", "unknown"),
        ("DistBackendError", "unhandled system error", "/x/torch/distributed/distributed_c10d.py", "unknown"),
        ("ConnectionError", "Connection refused by shard server", "/home/me/data.py", "dead"),
        (
            "RuntimeError",
            "[gloo/transport/tcp/pair.cc:801] 1 vs 4. Pair is not connected ([127.0.0.1]:17812$2 <--> [none])",
            "/home/me/train.py",
            "dead",
        ),
    ],
)
def test_an_error_is_a_symptom_where_communication_raised_it(folder, recorder, error, message, file, kind):
    folder.write({rank: recorder.dump([recorder.entry(PG, 1)], GROUPS) for rank in range(2)})
    frame = {"name": "f", "filename": file, "line": 3}
    folder.side(
        "exit_1.json", {"rank": 1, "error": error, "message": message, "traceback": [frame], "time_ns": 1 << 62}
    )
    folder.side("collection.json", collection(recorder, {0: "ok", 1: "exited"}, reason="failed"))
    assert folder.report().verdict.kind == kind


def test_views(folder, world):
    mesh = world(4, 2, 1)
    folder.write(mesh.dumps("shape", 5, "tp"))
    found = run.discover(folder.path)
    group = mesh.group("tp", 5)[0]
    matrix = views.matrix(found, group)
    last = matrix.columns[-1]
    assert list(matrix.index) == [4, 5, 6, 7]
    assert matrix[last].to_dict() == {4: "scheduled", 5: "mismatch", 6: "scheduled", 7: "scheduled"}
    assert set(matrix.iloc[:, 0]) == {"done"}
    side_by_side = views.operations(found, group)
    assert "8x4" in side_by_side.loc[last, 5].operation
    assert "8x4" not in side_by_side.loc[last, 4].operation
    assert views.groups(found).iloc[0]["waiting"] > 0
    assert len(views.matrix(found, limit=3).columns) == 3


def test_what_a_ring_buffer_has_dropped_is_no_difference(folder, recorder):
    """Rank 1 still has the first records, rank 0 not; they first differ where rank 1 stops."""
    kept = {0: range(20, 61), 1: range(1, 60)}
    folder.write({rank: recorder.dump([recorder.entry(PG, seq) for seq in kept[rank]], GROUPS) for rank in kept})
    side_by_side = views.operations(run.discover(folder.path), around=3)
    assert list(side_by_side.index) == [57, 58, 59, 60]
    assert not side_by_side.loc[60, 1].operation


def test_views_of_absent_things(folder, pair):
    found = run.discover(folder.write({0: pair[0]}).path)
    assert views.matrix(found, "nothing").empty
    assert views.operations(found, "nothing").empty
    assert views.matrix(found).loc[1].tolist() == ["no dump"] * 2


@pytest.mark.parametrize("homes", [("dumps", "dumps/set_2"), ("host_a/dumps", "host_b/dumps")])
def test_the_sets_of_two_nodes_are_one(tmp_path, folder, recorder, homes):
    """On a shared file system each node's collector makes a set; copied together, they are side by side."""
    groups = {"0": ("default_pg", range(4))}
    for number, home in enumerate(homes):
        node = type(folder)(tmp_path / home)
        ranks = range(2 * number, 2 * number + 2)
        stuck = {rank: rank == 3 for rank in ranks}
        for rank in ranks:
            ops = [recorder.entry(PG, 1), *([] if stuck[rank] else [recorder.entry(PG, 2, done=False)])]
            node.write({rank: recorder.dump(ops, groups)})
        node.side("collection.json", collection(recorder, dict.fromkeys(ranks, "ok")))
    report = analyze(run.discover(tmp_path))
    assert report.data.ranks_with_dump == [0, 1, 2, 3]
    assert (report.verdict.kind, report.verdict.ranks) == ("host_stuck", [3])
    assert report.data.culprits[0].step == 6


def test_an_earlier_hang_is_another_set(folder, pair):
    """The first hang involved ranks 0 and 1; the second came long after, and only rank 0 was left."""
    folder.write(pair)
    for path in folder.path.iterdir():
        os.utime(path, (1, 1))
    later = type(folder)(folder.path / "set_2").write({0: pair[0]})
    report = folder.report()
    assert [path.path for path in report.inputs] == [str(later.path / "rank_0")]


def test_the_end_of_an_earlier_attempt_is_over(folder, pair, recorder):
    gone = {"rank": 0, "pid": 7, "error": "ValueError", "time_ns": recorder.start_ns}
    folder.write(pair).side("exit_0.json", gone)
    assert folder.report().verdict.kind == "dead"
    folder.side("groups_0.json", {"rank": 0, "world_size": 2, "attempt": 1, "pid": 8})
    assert (folder.report().verdict.kind, folder.report().verdict.ranks) == ("host_stuck", [1])


def test_ranks_of_equal_content_share_a_row(folder, world):
    mesh = world(8, 4, 2)
    folder.write(mesh.dumps("missing", 43, "dp"))
    found = run.discover(folder.path)
    whole = views.matrix(found, "default_pg")
    short = views.folded(whole)
    assert len(short) == 2  # those of the culprit's dp group never came to the last operation
    seen = {rank: row for label, *row in short.itertuples() for rank in spelled_out(label)}
    assert seen == {rank: row for rank, *row in whole.itertuples()}
    side_by_side = views.folded(views.operations(found, mesh.group("dp", 43)[0]), "columns")
    assert set(side_by_side.columns) == {"35, 51, 59", "43"}
    said = views.locations(found)["text"].tolist()
    assert "rank 43 in no recorded operation" in said
    assert said[0] == "60 ranks in all_reduce at me/train.py:48"
    assert sum(map(len, views.locations(found)["ranks"])) == 64


def spelled_out(label):
    spans = [span.split("-") for span in label.split(", ")]
    return [rank for first, *last in spans for rank in range(int(first), int((last or [first])[0]) + 1)]


def test_victims_at_one_line_are_named_together(folder, world):
    report = folder.write(world(8, 4, 2).dumps("missing", 43, "dp")).report()
    waiting = [
        fact.text for fact in report.findings[0].evidence if "group mesh_tp" in fact.text or "group def" in fact.text
    ]
    assert 0 < len(waiting) <= 4
    assert all(text.startswith("ranks ") for text in waiting)


def test_a_rank_that_lost_its_connection_while_it_was_asked_is_no_culprit(folder, recorder):
    """Rank 2 is killed; rank 1 fails just after its dump was taken, in which it is in no operation."""
    groups = {"0": ("default_pg", [0, 1, 2])}
    waiting = recorder.dump([recorder.entry(PG, 1), recorder.entry(PG, 2, done=False)], groups)
    folder.write({0: waiting, 1: recorder.dump([recorder.entry(PG, 1)], groups)})
    folder.side("collection.json", collection(recorder, {0: "ok", 1: "ok", 2: "exited"}, reason="died"))
    just_after = recorder.start_ns + 60_000 * 1_000_000 + 1_000_000
    lost = {"rank": 1, "error": "RuntimeError", "message": "Connection closed by peer", "time_ns": just_after}
    folder.side("exit_1.json", lost)
    assert (folder.report().verdict.kind, folder.report().verdict.ranks) == ("dead", [2])


def test_the_folders_of_workers_name_ranks_within_a_node(tmp_path, folder, pair):
    """Local rank 0 of the second node is rank 1; if nothing shows which node wrote an error, no rank is named."""
    told = {"message": "ValueError: no tokens", "extraInfo": {"timestamp": "1600000000"}}
    home = tmp_path / "host_b"
    dumps = type(folder)(home / "dumps").write({0: pair[0]})
    dumps.side("groups_1.json", {"rank": 1, "local_rank": 0, "world_size": 2, "host": "b"})
    worker(home, folder, 0, 0).side("error.json", {"message": told})
    report = analyze(run.discover(tmp_path))
    assert (report.verdict.kind, report.verdict.ranks) == ("dead", [1])
    assert report.verdict.missing[-1].startswith("no dump of rank 1: ValueError")
    type(folder)(home / "logs/run_y/attempt_0/0").side("error.json", {"message": told | {"message": "KeyError: 1"}})
    assert "it left no dump" in analyze(run.discover(tmp_path)).verdict.sentence


def test_the_dumps_of_one_node_leave_the_others_open(folder, recorder):
    waiting = recorder.dump([recorder.entry(PG, 1, done=False)], {"0": ("default_pg", range(4))})
    report = folder.write({0: waiting, 1: waiting}).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("unknown", [])
    assert report.verdict.sentence == (
        "Ranks 2-3 left no dump, so nothing shows whether they are culprits or victims; ranks 0-1 wait for them"
    )
    assert report.verdict.missing == ["no dump of ranks 2-3"]
    assert "give the folders of all nodes to one" in report.findings[0].next


@pytest.mark.parametrize("state", ["completed", "scheduled"])
def test_a_coalesced_launch_is_done_when_its_closing_entry_is(folder, recorder, state):
    """NCCL never completes the entries of the sends and receives inside it."""

    def exchange(rank):
        peer = 1 - rank
        batch = [recorder.p2p(PG, 1, f"send {rank}->{peer}", 2), recorder.p2p(PG, 1, f"recv {rank}<-{peer}", 3)]
        closing = recorder.p2p(PG, 1, "coalesced", 4) | {"state": state, "input_sizes": [], "output_sizes": []}
        first = recorder.entry(PG, 1, record=1)
        inside = [entry | {"collective_seq_id": 1} for entry in (*batch, closing)]
        return recorder.dump([first, *inside], GROUPS)

    verdict = folder.write({rank: exchange(rank) for rank in range(2)}).report().verdict
    assert verdict.kind == ("healthy" if state == "completed" else "all_arrived")


@pytest.mark.parametrize("message", ["a" * 100_000, "store " * 20_000])
def test_a_long_message_takes_time_in_proportion_to_its_length(message):
    """A search that restarted at each letter took a minute for the first of these messages."""
    began = time.process_time()
    assert not is_victim(ExitFile(0, message=message))
    assert time.process_time() - began < 3
    assert is_victim(ExitFile(0, message=f"{message} TCPStore: waiting timed out in get"))


def test_gloos_sizes_before_the_stacks_of_all_threads(tmp_path):
    """Where torchrun's `record` has enabled faulthandler, it writes the stacks after the message of the abort."""
    sizes = (
        "throwing an instance of 'gloo::EnforceNotMet'\n what(): op.preamble.length <= op.nbytes. 60 vs 4. Received\n"
    )
    (tmp_path / "stderr.log").write_text(sizes + '  File "/usr/lib/x.py", line 1 in wait\n' * 1000)
    assert read_gloo_sizes(tmp_path / "stderr.log") == (60, 4)


def test_the_line_of_an_installed_trainer_comes_before_pytorchs():
    torch, titan, own = (
        Frame(name="f", filename=filename, line=1)
        for filename in ("/v/site-packages/torch/_ops.py", "/v/site-packages/torchtitan/train.py", "/home/me/train.py")
    )
    assert user_frame([torch, titan, own]) is own
    assert user_frame([torch, titan, torch]) is titan
    assert user_frame([torch]) is torch
