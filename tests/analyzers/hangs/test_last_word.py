"""Test records that are newer than the dumps and overrule them: clean ends, later heartbeats, fatal signals."""

import json
import struct

import pytest

from analyzers import incident, run
from analyzers.hangs import analyze

GROUP = ("0", "default_pg")
SECOND = 1_000_000_000


def beat(folder, rank, time_ns, phase=b"running", *, step=0, pid=100):
    path = folder.path.parent / "steps" / f"heartbeat_{rank}.bin"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(struct.pack("<qqqq32s", time_ns, step, pid + rank, 1, phase))


def side_files(folder, world, *, pid=100):
    for rank in range(world):
        groups = {"0": {"desc": "default_pg", "ranks": list(range(world))}}
        folder.side(
            f"groups_{rank}.json",
            {"schema": "workbench.groups/1", "rank": rank, "world_size": world, "pid": pid + rank, "groups": groups},
        )


def collection(folder, asked_ns, statuses, reason="stalled"):
    answers = {
        str(rank): {
            "status": status,
            "asked_ns": asked_ns,
            "answered_ns": asked_ns if status == "ok" else None,
            "heartbeat": {"step": 0, "phase": "running", "time_ns": asked_ns - 4 * SECOND},
        }
        for rank, status in enumerate(statuses)
    }
    rounds = [{"round": 1, "asked_ns": asked_ns, "ranks": answers}]
    content = {"schema": "workbench.collection/1", "reason": reason, "asked_ns": asked_ns, "rounds": rounds}
    folder.side("collection.json", content | {"stalled_s": 4.0, "timeout_s": 10.0})


def one_is_missing(folder, recorder, world=3, missing=0):
    """Write dumps of ranks that wait in all_reduce #2 for a rank that issued only #1; return the time of the
    request.
    """
    dumps = {}
    for rank in range(world):
        entries = [recorder.entry(GROUP, 1, backend="gloo")]
        if rank != missing:
            entries.append(recorder.entry(GROUP, 2, backend="gloo", done=False))
        dumps[rank] = recorder.dump(entries, {})
    side_files(folder, world)
    folder.write(dumps)
    asked_ns = recorder.start_ns + 10 * SECOND
    collection(folder, asked_ns, ["ok"] * world)
    return asked_ns


def test_a_stalled_rank_is_to_blame_while_nothing_moves(folder, recorder):
    asked_ns = one_is_missing(folder, recorder)
    for rank in range(3):
        beat(folder, rank, asked_ns - 4 * SECOND)
    assert (folder.report().verdict.kind, folder.report().verdict.ranks) == ("host_stuck", [0])


def test_ranks_that_went_on_after_the_dumps_were_slow(folder, recorder):
    asked_ns = one_is_missing(folder, recorder)
    for rank in range(3):
        beat(folder, rank, asked_ns + 3 * SECOND)
    report = folder.report()
    assert (report.verdict.kind, report.verdict.ranks, report.verdict.status) == ("slow", [0], "warning")
    assert "went on after the dumps" in report.verdict.sentence
    assert any("reported progress 3.00 s after the request" in fact.text for fact in report.findings[0].evidence)


def test_a_job_whose_ranks_ended_cleanly_is_healthy_whatever_dumps_show(folder, recorder):
    asked_ns = one_is_missing(folder, recorder)
    for rank in range(3):
        beat(folder, rank, asked_ns + 3 * SECOND, b"done", step=30)
    for verdict in (folder.report().verdict, incident.analyze(run.discover(folder.path.parent)).verdict):
        assert (verdict.kind, verdict.ranks, verdict.status) == ("healthy", [], "ok")
        assert verdict.sentence.startswith("Ranks 0-2 ended cleanly after 30 steps; rank 0 is slow, not stuck")
    assert [f.severity for f in folder.report().findings] == ["info"]


def test_a_clean_end_without_any_dump_is_healthy(folder):
    side_files(folder, 2)
    for rank in range(2):
        beat(folder, rank, SECOND, b"done")
    assert incident.analyze(run.discover(folder.path.parent)).verdict.sentence == "Ranks 0-1 ended cleanly"


def test_heartbeats_of_an_earlier_attempt_say_nothing(folder):
    side_files(folder, 2)
    for rank in range(2):
        beat(folder, rank, SECOND, b"done", pid=7)
    assert incident.analyze(run.discover(folder.path.parent)).verdict.kind == "unknown"


def test_a_rank_that_ended_normally_is_no_culprit_while_nobody_needs_it(folder, recorder):
    side_files(folder, 3)
    folder.write({0: recorder.dump([recorder.entry(GROUP, 1, backend="gloo")], {})})
    collection(folder, recorder.start_ns + 9 * SECOND, ["ok", "exited", "exited"])
    for rank, phase in enumerate((b"running", b"done", b"done")):
        beat(folder, rank, recorder.start_ns + SECOND, phase)
    assert folder.report().verdict.ranks == []


def gave_up(folder, rank, time_ns, message, line=30):
    frames = [{"name": "main", "filename": "/home/me/train.py", "line": line}]
    content = {"rank": rank, "pid": 100 + rank, "error": "RuntimeError", "message": message, "traceback": frames}
    folder.side(f"exit_{rank}.json", content | {"schema": "workbench.exit/1", "time_ns": time_ns})


def test_a_rank_that_ended_normally_is_the_cause_where_the_others_lost_it(folder):
    side_files(folder, 3)
    beat(folder, 2, 5 * SECOND, b"done")
    for rank in (0, 1):
        beat(folder, rank, 5 * SECOND)
        gave_up(folder, rank, 6 * SECOND, "[/gloo/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1")
    report = folder.report()
    assert (report.verdict.kind, report.verdict.ranks) == ("dead", [2])
    assert report.verdict.sentence == (
        "Rank 2 ended normally, while the other ranks went on in main (me/train.py:30); ranks 0-1 wait for it"
    )
    assert report.findings[0].next.startswith("Find out why rank 2 ran fewer steps")


@pytest.mark.parametrize("ended_at", [5, 7])
def test_a_rank_that_waits_after_most_others_ended_has_a_collective_too_many(folder, ended_at):
    side_files(folder, 3)
    for rank in (1, 2):
        beat(folder, rank, ended_at * SECOND, b"done")
    beat(folder, 0, 5 * SECOND)
    gave_up(folder, 0, 6 * SECOND, "[/gloo/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1")
    report = folder.report()
    assert (report.verdict.kind, report.verdict.ranks) == ("mismatch", [0])
    assert report.verdict.sentence == (
        "Rank 0 issued a collective when all other ranks had ended normally, in main (me/train.py:30)"
    )
    assert "`if rank == 0:`" in report.findings[0].next


def printed_by(folder, rank, text):
    path = folder.path.parent / "logs" / "job_x1" / "attempt_0" / str(rank) / "stderr.log"
    path.parent.mkdir(parents=True)
    path.write_text(text)


WAITED = """[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/home/me/train.py", line 30, in main
[rank{rank}]:   File "/venv/lib/torch/distributed/distributed_c10d.py", line 5356, in barrier
[rank{rank}]: RuntimeError: [/gloo/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1
"""
FAILED = """[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/me/train.py", line 12, in train
[rank0]: KeyError: 'horse'

[rank0]: During handling of the above exception, another exception occurred:

"""


@pytest.mark.parametrize(("before", "kind"), [(FAILED, "crashed"), ("", "mismatch")])
def test_an_error_whose_finally_waits_is_told_before_the_collective_that_differs(folder, recorder, before, kind):
    side_files(folder, 3)
    entries = [[recorder.entry(GROUP, 1, backend="gloo", op=op, done=False)] for op in ("barrier", *["all_reduce"] * 2)]
    folder.write({rank: recorder.dump(own, {}) for rank, own in enumerate(entries)})
    printed_by(folder, 0, before + WAITED.format(rank=0))
    printed_by(folder, 1, WAITED.format(rank=1).replace("line 30, in main", "line 13, in train"))
    verdict = incident.analyze(run.discover(folder.path.parent)).verdict
    assert (verdict.kind, verdict.ranks) == (kind, [0])


def test_a_loss_for_which_a_rank_left_is_told_before_its_exit(folder):
    side_files(folder, 2)
    frames = [{"name": "main", "filename": "/home/me/train.py", "line": 27}]
    left = {"rank": 1, "pid": 101, "error": "SystemExit", "message": "1", "traceback": frames, "time_ns": SECOND}
    folder.side("exit_1.json", left | {"schema": "workbench.exit/1"})
    printed_by(folder, 0, WAITED.format(rank=0))
    printed_by(folder, 1, "Loss is nan, stopping training\n")
    verdict = incident.analyze(run.discover(folder.path.parent)).verdict
    assert (verdict.kind, verdict.ranks) == ("nonfinite_loss", [1])


def test_ranks_that_all_vanished_at_once_were_ended_from_outside(folder, recorder):
    side_files(folder, 2)
    collection(folder, recorder.start_ns, ["exited", "exited"], "died")
    assert (folder.report().verdict.kind, folder.report().verdict.ranks) == ("unknown", [])


CRASH = """Fatal Python error: {name}

Thread 0x00007f80ea291b80 (most recent call first):
  File "/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/home/me/train.py", line 24 in main
  File "/home/me/train.py", line 31 in <module>

Current thread 0x00007f80bf3fe6c0 (most recent call first):
  <no Python frame>
"""


def size_abort(folder, recorder, sizes):
    """Write dumps of ranks that wait in all_reduce #2 with tensors of these sizes, after rank 2 died in it."""
    side_files(folder, 3)
    folder.write(
        {
            rank: recorder.dump(
                [
                    recorder.entry(GROUP, 1, backend="gloo"),
                    recorder.entry(GROUP, 2, backend="gloo", done=False, size=size, line=24),
                ],
                {},
            )
            for rank, size in enumerate(sizes)
        }
    )
    collection(folder, recorder.start_ns + 9 * SECOND, ["ok", "ok", "exited"], "died")
    folder.side("crash_2.txt", CRASH.format(name="Aborted"))


def test_a_rank_that_gloo_aborted_brought_another_size(folder, recorder):
    size_abort(folder, recorder, [(10,), (10,)])
    verdict = folder.report().verdict
    assert (verdict.kind, verdict.ranks) == ("mismatch", [2])
    assert verdict.sentence == (
        "Rank 2 passed a different shape or type to all_reduce (me/train.py:24) in collective #2 of process group"
        " default_pg, while ranks 0-1 passed a tensor of 10 float32 to all_reduce (me/train.py:24); ranks 0-1 wait"
        " for it"
    )


def test_a_rank_that_gloo_aborted_is_a_victim_where_the_others_differ(folder, recorder):
    size_abort(folder, recorder, [(10,), (12,)])
    verdict = folder.report().verdict
    assert verdict.kind == "mismatch"
    assert 2 not in verdict.ranks


def test_of_two_ranks_with_tensors_of_different_sizes_both_are_named(folder):
    side_files(folder, 2)
    collection(folder, SECOND, ["exited", "exited"], "died")
    folder.side("crash_1.txt", CRASH.format(name="Aborted"))
    gave_up(folder, 0, SECOND + 1, "[/gloo/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1")
    verdict = folder.report().verdict
    assert (verdict.kind, verdict.ranks) == ("mismatch", [0, 1])
    assert "rank 1 in main (me/train.py:24), rank 0 in main (me/train.py:30)" in verdict.sentence


@pytest.mark.parametrize(("called", "blamed"), [("all_reduce", [1]), ("broadcast", [0, 2])])
def test_the_rank_at_another_line_than_the_aborted_one_and_most_is_to_blame(folder, called, blamed):
    """In a broadcast the rank at another line may have sent its part and gone on."""
    side_files(folder, 3)
    collection(folder, SECOND, ["exited"] * 3, "died")
    folder.side("crash_2.txt", CRASH.format(name="Aborted").replace("in all_reduce", f"in {called}"))
    for rank, line in ((0, 24), (1, 30)):
        gave_up(folder, rank, SECOND + 1, "[/gloo/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1", line)
    verdict = folder.report().verdict
    assert (verdict.kind, verdict.ranks) == ("mismatch", blamed)
    if blamed == [1]:
        assert "ranks 0, 2 in main (me/train.py:24), rank 1 in main (me/train.py:30)" in verdict.sentence


@pytest.mark.parametrize(("sizes", "blamed"), [((10, 20), [1]), ((20, 20), [2]), ((15, 20), [1, 2])])
def test_a_third_dump_shows_which_neighbour_of_the_aborted_rank_passed_another_size(folder, recorder, sizes, blamed):
    """Rank 2 aborted without a dump; gloo's ring brought it twice as much as it expected, from rank 1 by all_gather."""
    side_files(folder, 3)
    for rank in (0, 1):
        gave_up(folder, rank, SECOND + 1, "[/gloo/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1", 24)
    entries = [recorder.entry(GROUP, 1, op="all_gather", backend="gloo", size=(size,), line=24) for size in sizes]
    folder.write({rank: recorder.dump([entry], {}) for rank, entry in enumerate(entries)})
    collection(folder, SECOND, ["exited"] * 3, "died")
    folder.side("crash_2.txt", CRASH.format(name="Aborted").replace("in all_reduce", "in all_gather"))
    printed_by(folder, 2, "'gloo::EnforceNotMet'\n  what():  op.preamble.length <= op.nbytes. 1024 vs 512. Received\n")
    verdict = analyze(run.discover(folder.path.parent)).verdict
    assert (verdict.kind, verdict.ranks) == ("mismatch", blamed)


def test_an_abort_after_dumps_that_show_nothing_wrong_is_told_with_its_line(folder, recorder):
    size_abort(folder, recorder, [(10,), (10,)])
    dump = recorder.dump([recorder.entry(GROUP, number, backend="gloo") for number in (1, 2)], {})
    folder.write(dict.fromkeys(range(3), dump))
    collection(folder, recorder.start_ns + 9 * SECOND, ["ok"] * 3)
    verdict = folder.report().verdict
    assert (verdict.kind, verdict.ranks) == ("mismatch", [2])
    assert "in main (me/train.py:24)" in verdict.sentence


def test_a_rank_that_had_not_started_when_dumps_were_taken_is_not_dead(folder, recorder):
    asked_ns = one_is_missing(folder, recorder)
    (folder.path / "rank_0").unlink()
    collection(folder, asked_ns, ["unregistered", "ok", "ok"])
    assert folder.report().verdict.ranks == []


def test_ranks_that_ended_alike_did_not_wait_for_each_other(folder):
    side_files(folder, 3)
    collection(folder, SECOND, ["exited"] * 3, "died")
    (folder.path.parent / "run.json").write_text('{"world_size": 3, "exit_codes": {"0": 2, "1": 2, "2": 2}}')
    report = folder.report()
    assert (report.verdict.kind, report.verdict.ranks) == ("dead", [0, 1, 2])
    assert "wait" not in report.verdict.sentence
    assert len(report.findings) == 1


def counts(folder, rank, name, tag, calls=1):
    row = struct.pack("<qq40sq64s", calls, SECOND, name.encode(), tag, b"0")
    (folder.path / f"p2p_{rank}.bin").write_bytes(row)


@pytest.mark.parametrize(("tags", "kind"), [((0, 1), "unmatched_p2p"), ((1, 1), "unknown")])
def test_a_send_and_a_recv_under_different_tags(folder, recorder, tags, kind):
    side_files(folder, 2)
    folder.write({rank: recorder.dump([recorder.entry(GROUP, 1, backend="gloo")], {}) for rank in range(2)})
    collection(folder, recorder.start_ns + 9 * SECOND, ["ok"] * 2)
    for rank, (verb, name) in enumerate([("send", "send 0->1"), ("recv", "recv 1<-0")]):
        counts(folder, rank, name, tags[rank])
        stack = f'  File "/site-packages/torch/distributed/distributed_c10d.py", line 2753 in {verb}\n'
        line = '  File "/home/me/train.py", line {} in {}\n'
        mine = line.format(rank + 20, "exchange") + line.format(9, "<module>")
        folder.side(f"stacks_{rank}.txt", f"Thread 0x1 (most recent call first):\n{stack}{mine}")
    verdict = folder.report().verdict
    assert verdict.kind == kind
    if kind == "unmatched_p2p":
        assert verdict.ranks == [0, 1]
        assert "send of tag 0 (me/train.py:20), rank 1 issued recv of tag 1 (me/train.py:21)" in verdict.sentence


def test_a_server_that_waits_for_one_message_too_many_of_any_worker_is_named(folder, recorder):
    """Gloo's dumps have no sends and receives, and so no process group either: both come from the recorders' files."""
    side_files(folder, 3)
    folder.write({rank: recorder.dump([], {}) for rank in range(3)})
    collection(folder, recorder.start_ns + 9 * SECOND, ["ok"] * 3)
    line = '  File "/home/me/train.py", line {} in {}\n'
    stack = '  File "/site-packages/torch/distributed/distributed_c10d.py", line 2799 in recv\n'
    for rank, (function, number) in enumerate([("serve", 20), ("work", 30), ("work", 30)]):
        own = line.format(number, function) + line.format(9, "<module>")
        folder.side(f"stacks_{rank}.txt", f"Thread 0x1 (most recent call first):\n{stack}{own}")
        rows = [(3, "recv 0<-any")] if rank == 0 else [(1, f"send {rank}->0"), (1, f"recv {rank}<-0")]
        packed = (struct.pack("<qq40sq64s", calls, SECOND, name.encode(), 0, b"0") for calls, name in rows)
        (folder.path / f"p2p_{rank}.bin").write_bytes(b"".join(packed))
    report = folder.report()
    assert (report.verdict.kind, report.verdict.ranks) == ("unmatched_p2p", [0])
    assert "in serve (me/train.py:20) whose other half was never issued" in report.verdict.sentence
    assert [wait.operation for wait in report.data.waits] == ["recv 1<-0", "recv 2<-0"]


def test_a_segmentation_fault_is_told_with_its_line(folder, recorder):
    size_abort(folder, recorder, [(10,), (10,)])
    folder.side("crash_2.txt", CRASH.format(name="Segmentation fault"))
    assert folder.report().verdict.sentence == (
        "Rank 2 died before all_reduce #2 of process group default_pg: Segmentation fault in main (me/train.py:24);"
        " ranks 0-1 wait for it"
    )


def test_a_monitored_barrier_waits_for_the_rank_that_is_elsewhere(folder, recorder):
    side_files(folder, 3)
    folder.write({rank: recorder.dump([recorder.entry(GROUP, 1, backend="gloo")], {}) for rank in range(3)})
    collection(folder, recorder.start_ns + 9 * SECOND, ["ok"] * 3)
    barrier = '  File "/site-packages/torch/distributed/distributed_c10d.py", line 5000 in monitored_barrier\n'
    for rank in range(3):
        line = '  File "/home/me/train.py", line {} in {}\n  File "/home/me/train.py", line 40 in <module>\n'
        here = line.format(9, "prepare") if rank == 2 else barrier + line.format(30, "main")
        folder.side(f"stacks_{rank}.txt", f"Thread 0x1 (most recent call first):\n{here}")
    verdict = folder.report().verdict
    assert (verdict.kind, verdict.ranks) == ("host_stuck", [2])
    assert (
        "in prepare (me/train.py:9) and never joined monitored_barrier #2 of process group default_pg"
        in verdict.sentence
    )


@pytest.mark.parametrize("named", ["Rank 1 failed", "Ranks 1 failed"])
def test_the_error_of_a_monitored_barrier_names_who_is_missing(folder, named):
    side_files(folder, 3)
    gave_up(folder, 0, SECOND, f"[Rank 0]: {named} to pass monitoredBarrier in 10000 ms")
    gave_up(folder, 2, SECOND, "Rank 2 successfully reached monitoredBarrier, but received errors from rank 0.")
    assert (folder.report().verdict.kind, folder.report().verdict.ranks) == ("host_stuck", [1])


def test_the_odd_model_is_found_from_the_errors_of_all_ranks(folder):
    side_files(folder, 3)
    text = (
        "DDP expects same model across all ranks, but Rank {} has {} params, while rank {} has inconsistent {} params."
    )
    for rank, message in enumerate((text.format(0, 8, 1, 6), text.format(1, 6, 0, 8), text.format(2, 8, 1, 6))):
        gave_up(folder, rank, SECOND + rank, message)
    assert (folder.report().verdict.kind, folder.report().verdict.ranks) == ("mismatch", [1])


def test_ranks_that_gave_up_without_a_known_cause_are_not_healthy(folder):
    side_files(folder, 2)
    gave_up(folder, 0, SECOND, "[/gloo/tcp/pair.cc:553] Timed out waiting 10000ms for recv operation to complete")
    verdict = incident.analyze(run.discover(folder.path.parent)).verdict
    assert (verdict.status, verdict.kind) == ("unknown", "unknown")


def test_a_stuck_rank_is_told_with_its_child_processes_and_the_thread_that_died(folder, recorder):
    asked_ns = one_is_missing(folder, recorder)
    beat(folder, 0, asked_ns - 4 * SECOND)
    frames = [{"name": "produce", "filename": "/home/me/data.py", "line": 7}]
    thread = {"rank": 0, "pid": 100, "thread": "Thread-1", "error": "ValueError", "message": "no label"}
    folder.side("thread_0.json", thread | {"traceback": frames})
    child = "Process {}: python train.py\nCurrent thread 0x1 (most recent call first):\n{}"
    inherited = (
        '  File "/lib/multiprocessing/process.py", line 314 in _bootstrap\n  File "/home/me/train.py", line 3 in main\n'
    )
    idle = child.format(7, '  File "/lib/python3.11/multiprocessing/connection.py", line 395 in _recv\n' + inherited)
    busy = child.format(8, '  File "/home/me/data.py", line 41 in decode\n' + inherited)
    folder.side("children_0.txt", f"{idle}\n{busy}\nProcess 9: sleep 100\n")
    finding = folder.report().findings[0]
    assert "Its thread Thread-1 ended: ValueError: no label in produce (me/data.py:7)" in finding.why
    assert finding.next == "Fix the ValueError raised at me/data.py:7: it ended a thread of the rank."
    told = [(e.text, e.line) for e in finding.evidence if "child process" in e.text]
    assert told[0] == ("child process 8 of rank 0 is in decode", "/home/me/data.py:41")


LOGGED = """ERROR:root:could not read, trying again
Traceback (most recent call last):
  File "/home/me/train.py", line 19, in fetch
    raise TimeoutError("read of shard 2 timed out")
TimeoutError: read of shard 2 timed out
"""
TABLE = """
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_12:20:42
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 12211)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


def test_an_error_that_was_logged_and_survived_is_no_failure(folder):
    side_files(folder, 2)
    for rank in range(2):
        beat(folder, rank, SECOND, b"done")
        log = folder.path.parent / "logs" / "job_x" / "attempt_0" / str(rank) / "stderr.log"
        log.parent.mkdir(parents=True)
        log.write_text(LOGGED)
    report = incident.analyze(run.discover(folder.path.parent))
    assert (report.verdict.kind, report.verdict.sentence) == ("healthy", "Ranks 0-1 ended cleanly")
    assert {str(finding.severity) for finding in report.findings} <= {"info"}


def test_a_launcher_that_reports_a_failure_is_believed_against_clean_heartbeats(folder):
    side_files(folder, 2)
    for rank in range(2):
        beat(folder, rank, SECOND, b"done")
    (folder.path.parent / "torchrun.log").write_text(TABLE)
    verdict = incident.analyze(run.discover(folder.path.parent)).verdict
    assert verdict.status != "ok"


def test_a_job_without_steps_is_healthy_where_all_its_ranks_marked_their_ends(folder):
    side_files(folder, 2)
    run_json = '{"command": ["python", "train.py"], "status": "completed", "world_size": 2, "exit_codes": {}}'
    (folder.path.parent / "run.json").write_text(run_json)
    for rank in range(2):
        beat(folder, rank, 5 * SECOND, b"done")
    verdict = incident.analyze(run.discover(folder.path.parent)).verdict
    assert (verdict.status, verdict.sentence) == ("ok", "The run completed; ranks 0-1 ended cleanly")
    beat(folder, 1, 5 * SECOND)
    verdict = incident.analyze(run.discover(folder.path.parent)).verdict
    assert verdict.status == "unknown"


STACKS_AT_THE_END = """Thread 0x0000aa (most recent call first):
  File "/home/me/report.py", line 23 in report
  File "/usr/lib/python3.11/threading.py", line 982 in run

Thread 0x0000bb (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 1590 in _shutdown
"""


def test_a_thread_that_keeps_a_rank_alive_after_its_program_is_named(folder, recorder):
    side_files(folder, 2)
    folder.write({1: recorder.dump([recorder.entry(GROUP, 1, backend="gloo")], {})})
    folder.side("stacks_1.txt", STACKS_AT_THE_END)
    asked_ns = recorder.start_ns + 9 * SECOND
    collection(folder, asked_ns, ["exited", "ok"])
    beat(folder, 0, asked_ns - 5 * SECOND, b"done")
    beat(folder, 1, asked_ns - 5 * SECOND)
    report = folder.report()
    assert (report.verdict.kind, report.verdict.ranks, report.verdict.status) == ("host_stuck", [1], "error")
    assert "finished its program" in report.verdict.sentence
    assert "report (me/report.py:23)" in report.verdict.sentence
    assert "daemon=True" in report.findings[0].next
    beat(folder, 1, asked_ns + 5 * SECOND, b"done")
    assert folder.report().verdict.kind == "healthy"


def test_ranks_that_end_with_0_after_a_lost_connection_are_not_healthy(folder):
    """A handler around the training ends the rank that failed, and those whose collective then fails, with code 0."""
    side_files(folder, 3)
    lost = (
        "stopped early: RuntimeError('[/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:16542')"
    )
    for rank, said in enumerate((lost, "stopped early: KeyError('horse')", lost)):
        beat(folder, rank, SECOND, b"done")
        printed_by(folder, rank, f"WARNING:root:training {said}\n")
    report = incident.analyze(run.discover(folder.path.parent))
    assert (report.verdict.kind, report.verdict.ranks, report.verdict.status) == ("early_exit", [1], "error")


def test_an_error_that_a_checkpoint_raises_on_all_ranks_is_that_of_the_rank_it_names(folder, recorder):
    side_files(folder, 3)
    message = (
        "CheckpointException ranks:dict_keys([2])\nTraceback (most recent call last): (RANK 2)\n"
        '  File "/venv/site-packages/torch/serialization.py", line 1253, in _save\nTypeError: cannot pickle a lock\n'
    )
    for rank in range(3):
        gave_up(folder, rank, recorder.start_ns + (3 - rank) * SECOND, message)
    verdict = incident.analyze(run.discover(folder.path)).verdict
    assert verdict.ranks == [2]
    assert "TypeError: cannot pickle a lock in main (me/train.py:30)" in verdict.sentence


def test_a_rank_that_has_destroyed_its_process_group_is_not_stuck(folder, recorder):
    asked_ns = one_is_missing(folder, recorder)
    path = folder.path / "collection.json"
    path.write_text(path.read_text().replace('"phase": "running"', '"phase": "process group destroyed"', 1))
    for rank in range(3):
        beat(folder, rank, asked_ns - 4 * SECOND)
    report = folder.report()
    assert (report.verdict.kind, report.verdict.ranks) == ("skipped", [0])
    assert "had called destroy_process_group() before" in report.findings[0].why


def test_an_exception_that_only_the_log_of_a_dead_rank_has_is_told(folder, recorder):
    """Its recorder could not write, for example because the process may open no more files."""
    asked_ns = one_is_missing(folder, recorder, missing=1)
    (folder.path / "rank_1").unlink()
    collection(folder, asked_ns, ["ok", "exited", "ok"], "died")
    failed = FAILED.replace("[rank0]", "[rank1]").partition("\n\n")[0]
    for rank, text in enumerate((WAITED.format(rank=0), failed + "\n", WAITED.format(rank=2))):
        printed_by(folder, rank, text)
    verdict = incident.analyze(run.discover(folder.path.parent)).verdict
    assert (verdict.kind, verdict.ranks) == ("crashed", [1])
    assert "KeyError: 'horse' in train (me/train.py:12)" in verdict.sentence


REFUSED = (
    "[enforce fail at /pytorch/third_party/gloo/gloo/alltoallv.cc:138] inLengthPerRank[myRank] == outLengthPerRank[",
    "ProcessGroupGloo::alltoall_base: invalid tensor size at index 0 (expected (3), got (4))",
)


@pytest.mark.parametrize("message", REFUSED)
def test_a_rank_that_raises_inside_its_own_call_is_the_crash(folder, recorder, message):
    """Gloo flags the call that failed as done, and its message names gloo as errors about other ranks do."""
    dumps = {
        rank: recorder.dump(
            [recorder.entry(GROUP, seq, op="all_to_all", backend="gloo", done=seq < 2 or rank == 1) for seq in (1, 2)],
            {},
        )
        for rank in range(2)
    }
    side_files(folder, 2)
    folder.write(dumps)
    asked_ns = recorder.start_ns + 3 * SECOND
    collection(folder, asked_ns, ["ok", "ok"], reason="failed")
    call = {"name": "all_to_all_single", "filename": "/x/torch/distributed/distributed_c10d.py", "line": 9}
    mine = {"name": "shuffle", "filename": "/home/me/train.py", "line": 30}
    content = {"rank": 1, "pid": 101, "error": "RuntimeError", "message": message, "traceback": [call, mine]}
    folder.side("exit_1.json", content | {"schema": "workbench.exit/1", "time_ns": asked_ns - SECOND})
    report = folder.report()
    assert (report.verdict.kind, report.verdict.ranks) == ("dead", [1])
    assert report.data.culprits[0].victims == [0]
    assert "shuffle (me/train.py:30)" in report.verdict.sentence


@pytest.mark.parametrize("phases", [(b"done", b"running"), (b"process group destroyed", b"process group destroyed")])
def test_an_abort_after_the_training_has_ended_is_that_and_nobody_waits(folder, recorder, phases):
    """While Python takes a process down, gloo's threads may still run: C++ then aborts the process."""
    side_files(folder, 3)
    statuses = ["exited" if rank == 1 or phases[0] == b"done" else "ok" for rank in range(3)]
    collection(folder, recorder.start_ns + 9 * SECOND, statuses, "died")
    for rank in range(3):
        beat(folder, rank, recorder.start_ns + 8 * SECOND, phases[rank == 1])
    stack = '  File "/home/me/train.py", line 30 in <module>\n'
    folder.side("crash_1.txt", f"Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n{stack}")
    report = folder.report()
    assert (report.verdict.status, report.verdict.kind, report.verdict.ranks) == ("warning", "dead", [1])
    assert report.verdict.sentence == "Rank 1 was aborted after the training had ended"
    assert report.data.culprits[0].victims == []
    assert [finding.severity for finding in report.findings] == ["warning"]


def test_an_abort_while_others_lose_their_connection_is_no_end(folder, recorder):
    side_files(folder, 2)
    collection(folder, recorder.start_ns + 9 * SECOND, ["exited"] * 2, "died")
    beat(folder, 0, SECOND, b"done")
    gave_up(
        folder, 0, recorder.start_ns + 8 * SECOND, "[/gloo/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1"
    )
    folder.side("crash_1.txt", "Fatal Python error: Aborted\n")
    report = folder.report()
    assert (report.verdict.status, report.data.culprits[0].victims) == ("error", [0])


def test_the_size_that_the_aborted_rank_expected_breaks_a_tie(folder, recorder):
    """Rank 2 received twice what it expected: its tensor is like that of rank 0, and rank 1 is the odd one."""
    size_abort(folder, recorder, [(10,), (20,)])
    printed_by(folder, 2, "'gloo::EnforceNotMet'\n  what():  op.preamble.length <= op.nbytes. 684 vs 344. Received\n")
    verdict = analyze(run.discover(folder.path.parent)).verdict
    assert (verdict.kind, verdict.ranks) == ("mismatch", [1])
    assert verdict.sentence.startswith("Rank 1 passed a tensor of 20 float32 to all_reduce, while rank 0 passed")


def test_the_lines_of_both_collectives_are_named_where_the_one_that_gloo_aborted_is_elsewhere(folder):
    side_files(folder, 3)
    collection(folder, SECOND, ["exited"] * 3, "died")
    folder.side("crash_2.txt", CRASH.format(name="Aborted"))
    for rank in (0, 1):
        gave_up(folder, rank, SECOND + 1, "[/gloo/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1", 30)
    report = folder.report()
    assert (report.verdict.kind, report.verdict.ranks) == ("mismatch", [2])
    assert report.findings[0].title == (
        "Rank 2 called a different collective than the other ranks: rank 2 in main (me/train.py:24), ranks 0-1 in main"
        " (me/train.py:30)"
    )
    assert report.findings[0].next.startswith("Compare me/train.py:24 with me/train.py:30")


UNSAFE = """Weights only load failed. There are two options, \x1b[1mdo those steps only if you trust the source\x1b[0m.
\t(1) ...
\tUnsupported global: GLOBAL __main__.Config. Please use `torch.serialization.add_safe_globals([Config])` to allowlist
this global if you trust this class/function.

Check the documentation of torch.load."""


def test_what_an_error_advises_is_the_next_step_and_its_text_is_one_line(folder):
    side_files(folder, 2)
    gave_up(folder, 1, SECOND, UNSAFE)
    report = folder.report()
    sentences = [report.verdict.sentence, *(t for f in report.findings for t in (f.title, f.why, f.next))]
    assert not [text for text in sentences if "\n" in text or "\x1b" in text]
    assert "RuntimeError: Weights only load failed. There are two options, do those steps" in report.verdict.sentence
    assert report.findings[0].next.startswith(
        "Use `torch.serialization.add_safe_globals([Config])` to allowlist this global if you trust this class/function"
        " (so says the RuntimeError at me/train.py:30)"
    )


MIB = 1 << 20


@pytest.mark.parametrize(
    ("sizes", "code", "told"),
    [
        ([400 + 30 * n for n in range(12)], -9, True),
        ([400 + 30 * n for n in range(12)], None, True),
        ([400 + 30 * n for n in range(12)], -11, False),
        ([400, 700, *[800] * 10], -9, False),  # a warm-up
        ([400 + n for n in range(12)], -9, False),
    ],
)
def test_a_silent_death_is_joined_with_the_growth_of_its_memory(folder, recorder, sizes, code, told):
    one_is_missing(folder, recorder, missing=2)
    (folder.path / "rank_2").unlink()
    collection(folder, recorder.start_ns + 9 * SECOND, ["ok", "ok", "exited"], "died")
    if code is not None:
        (folder.path.parent / "run.json").write_text(json.dumps({"world_size": 3, "exit_codes": {"2": code}}))
    rows = [{"schema": "workbench.steps/1", "rank": 2, "world_size": 3}]
    rows += [{"step": n, "dur_ns": SECOND, "memory_bytes": size * MIB} for n, size in enumerate(sizes, 1)]
    (folder.path.parent / "steps").mkdir(exist_ok=True)
    (folder.path.parent / "steps/rank_2.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    finding = analyze(run.discover(folder.path.parent)).findings[0]
    assert (finding.id, finding.ranks) == ("hang.dead", [2])
    grown = "Its memory had grown from 400.0 MiB to 730.0 MiB in its last 12 steps (30.0 MiB a step)"
    assert (grown in finding.why) == told
    assert ("keeps from step to step (30.0 MiB each)" in finding.next) == told


TASK = """Task exception was never retrieved
future: <Task finished name='Task-2' coro=<fetch() done, defined at /home/me/data.py:25> exception=KeyError('label')>
Traceback (most recent call last):
  File "/home/me/data.py", line 27, in fetch
    batch["label"]
    ~~~~~^^^^^^^^^
KeyError: 'label'
[W1128 12:00:00 socket.cpp:1] still here
"""


def test_the_error_of_a_task_for_which_a_stuck_rank_waits_is_the_next_step(folder, recorder):
    one_is_missing(folder, recorder)
    printed_by(folder, 0, TASK)
    finding = analyze(run.discover(folder.path.parent)).findings[0]
    assert (finding.id, finding.ranks) == ("hang.host_stuck", [0])
    assert "A task of asyncio ended: KeyError: 'label' in fetch (me/data.py:27)" in finding.why
    assert finding.next.startswith("Fix the KeyError raised at me/data.py:27: it ended a task")
